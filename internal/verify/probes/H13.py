def fill(path, stop):
    n = 0
    try:
        with open(path, 'wb', buffering=0) as f:
            block = b'\1' * (1 << 20)
            while n < stop:
                left = memoryview(block)
                while left:
                    left = left[f.write(left):]
                n += 1
        return 'nothing', n
    except OSError as e:
        return name(e.errno), n
    finally:
        os.unlink(path)
for path, limit in (('/mnt/files/fill', P['workspace']), ('/tmp/fill', P['scratch']), ('/dev/shm/fill', P['scratch'])):
    why, n = fill(path, (limit >> 20) + 8)
    notes.append('%s: %s after %d MiB' % (path, why, n))
    if why not in ('ENOSPC', 'EDQUOT') or n > limit >> 20:
        bad.append('%s took %d MiB, then %s' % (path, n, why))
