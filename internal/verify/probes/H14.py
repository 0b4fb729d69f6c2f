import shutil
for base in ('/mnt/files/many', '/tmp/many'):
    os.mkdir(base)
    n, why = 0, 'nothing'
    try:
        while n < P['inodes'] + 500:
            os.close(os.open('%s/%d' % (base, n), os.O_CREAT | os.O_WRONLY))
            n += 1
    except OSError as e:
        why = name(e.errno)
    notes.append('%s: %s after %d files' % (base, why, n))
    if why not in ('ENOSPC', 'EDQUOT') or n > P['inodes']:
        bad.append('%s took %d files, then %s' % (base, n, why))
    shutil.rmtree(base)
