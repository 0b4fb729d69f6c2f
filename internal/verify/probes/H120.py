import stat
names = ('python3', 'python', 'bash', 'sh', 'tar', 'node', 'env', 'cat', 'workbench', 'unpigz', 'xz')
if P['plant']:
    for d in ('/mnt/files', '/tmp/home', '/tmp/home/bin', '/mnt/files/bin', '/tmp'):
        os.makedirs(d, exist_ok=True)
        for n in names:
            path = d + '/' + n
            with open(path, 'w') as f:
                f.write('#!/bin/sh\necho hijacked $0 >> /tmp/hijacked\necho hijacked\n')
            os.chmod(path, 0o755)
    notes.append('planted')
else:
    import shutil
    for n in names:
        where = shutil.which(n)
        if where and where.startswith(('/mnt/files', '/tmp')):
            bad.append('%s is found at %s' % (n, where))
    if os.path.exists('/tmp/hijacked'):
        bad.append(open('/tmp/hijacked').read(200))
    if not os.path.realpath(sys.executable).startswith('/usr/bin/'):
        bad.append('runs by ' + sys.executable)
    notes.append('every command is the image\'s')
