n = 0
suspicious = ('id_rsa', 'id_ed25519', 'id_ecdsa', '.pem.key', 'kubeconfig', '.dockercfg', '.git-credentials', '.netrc', '.pgpass', '.npmrc', '.pypirc', 'application_default_credentials.json', 'master.key', 'master-key')
places = ('/var/run/secrets', '/run/secrets', '/etc/kubernetes', '/root/.ssh', '/root/.aws', '/root/.kube', '/root/.docker', '/root/.config/gcloud', '/home/user/.ssh', '/tmp/home/.ssh', '/tmp/home/.aws', '/etc/workbench', '/var/lib/workbench', '/var/lib/kubelet', '/var/lib/docker', '/host', '/hostfs', '/.dockerenv')
for p in places:
    if os.path.lexists(p):
        bad.append(p + ' is there')
for base in ('/etc', '/opt', '/mnt', '/root', '/home', '/run', '/srv', '/tmp', '/usr/local', '/var'):
    for d, dirs, files in os.walk(base):
        for f in files:
            n += 1
            path = os.path.join(d, f)
            if f.startswith(suspicious) or f.endswith('.key'):
                bad.append(path + ' is there')
            elif not os.path.islink(path) and os.path.isfile(path):
                try:
                    if os.path.getsize(path) < 65536 and b'PRIVATE KEY-----' in (readable(path, 65536) or b''):
                        bad.append(path + ' holds a private key')
                except OSError:
                    pass
notes.append('%d files searched' % n)
