# Every way to change a file of the root: the observer compares hashes.
import mmap
targets = P['targets']
n = 0
def tries(what, f):
    global n
    n += 1
    try:
        f()
        bad.append(what)
    except (OSError, ValueError):
        pass
def opened(path, flags):
    fd = os.open(path, flags)
    try:
        os.write(fd, b'#')
    finally:
        os.close(fd)
def mapped(path):
    fd = os.open(path, os.O_RDWR)
    m = mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_WRITE)
    m[0] = 35
def spliced(path):
    # Dirty Pipe's way, which a fixed kernel answers with a new page.
    r, w = os.pipe()
    os.write(w, b'x' * 4096)
    os.read(r, 4096)
    fd = os.open(path, os.O_RDONLY)
    os.splice(fd, w, 1, offset_src=0)
    os.write(w, b'#')
    if open(path, 'rb').read(2)[1:] == b'#':
        return
    raise OSError('unchanged')
for t in targets:
    tries('writes ' + t, lambda: opened(t, os.O_WRONLY))
    tries('appends to ' + t, lambda: opened(t, os.O_WRONLY | os.O_APPEND))
    tries('truncates ' + t, lambda: os.truncate(t, 0))
    tries('maps ' + t + ' for writing', lambda: mapped(t))
    tries('splices over ' + t, lambda: spliced(t))
    tries('changes the mode of ' + t, lambda: os.chmod(t, 0o777))
    tries('renames ' + t, lambda: os.rename(t, t + '.old'))
    tries('links ' + t, lambda: os.link(t, '/mnt/files/link'))
    tries('replaces ' + t, lambda: (os.symlink('/etc/passwd', t + '.new'), os.rename(t + '.new', t)))
    tries('touches ' + t, lambda: os.utime(t, (1, 1)))
notes.append('%d attempts on %s' % (n, ', '.join(targets)))
