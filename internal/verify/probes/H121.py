import glob, shutil
if P['plant']:
    lib = next(p for p in sorted(glob.glob('/usr/lib/*-linux-gnu/libm.so.6') + glob.glob('/lib/*-linux-gnu/libm.so.6')))
    for to in ('/mnt/files/evil.so', '/mnt/files/libc.so.6', '/mnt/files/libpython3.so'):
        shutil.copy(lib, to)
    for f in ('sitecustomize.py', 'usercustomize.py', 'json.py', 'ast.py', 'traceback.py', 'workbench.py'):
        with open('/mnt/files/' + f, 'w') as out:
            out.write("open('/tmp/imported', 'a').write(__name__ + chr(10))\n")
    for f in ('.bashrc', '.bash_profile', '.profile', '.bash_env'):
        for d in ('/mnt/files/', '/tmp/home/'):
            with open(d + f, 'w') as out:
                out.write('echo %s >> /tmp/imported\n' % f)
    try:
        open('/etc/ld.so.preload', 'w').close()
        bad.append('wrote /etc/ld.so.preload')
    except OSError as e:
        notes.append('ld.so.preload: ' + name(e.errno))
else:
    # This process, and every other that can be looked at.
    for p in os.listdir('/proc'):
        if p.isdigit():
            maps = (readable('/proc/%s/maps' % p, 1 << 18) or b'').decode('utf-8', 'replace')
            for l in maps.splitlines():
                if '/mnt/files' in l or '/tmp/' in l:
                    bad.append('process %s has %s loaded' % (p, l.split()[-1]))
    for n in ('LD_PRELOAD', 'LD_LIBRARY_PATH', 'LD_AUDIT', 'PYTHONSTARTUP', 'BASH_ENV', 'ENV'):
        if os.environ.get(n):
            bad.append('%s is %s' % (n, os.environ[n]))
    bad[:] = sorted(set(bad))
    notes.append('nothing of the workspace is loaded')
