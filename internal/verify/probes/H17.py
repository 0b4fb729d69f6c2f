n, why = 0, 'nothing'
try:
    while n < P['inodes'] + 400:
        d = '/mnt/files/w%d' % (n // 500)
        if n % 500 == 0:
            os.mkdir(d)
        os.close(os.open('%s/%d' % (d, n), os.O_CREAT | os.O_WRONLY))
        n += 1
except OSError as e:
    why = name(e.errno)
data['files'] = n
notes.append('%s after %d files' % (why, n))
