# Drops a marked file wherever that is allowed, or looks for them.
places = ['/tmp', '/var/tmp', '/dev/shm', '/run/lock', '/run', '/var/lock', '/mnt/files', '/mnt', '/tmp/home', '/opt/workbench/packages', '/var/cache', '/var/crash', '/root', '/home', '/', '/etc', '/dev', '/dev/mqueue', '/proc', '/sys', '/run/workbench', '/srv', '/media', '/usr/local']
n = 0
for d in places:
    path = os.path.join(d, P['marker'])
    if P['drop']:
        try:
            open(path, 'w').close()
            n += 1
        except OSError:
            pass
    elif os.path.lexists(path):
        bad.append(path)
data['dropped'] = n
notes.append('%d files dropped' % n if P['drop'] else 'none of them is there')
