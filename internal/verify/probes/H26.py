for dev in ('/dev/fuse',):
    fd = -1
    try:
        fd = os.open(dev, os.O_RDWR)
        bad.append('opened ' + dev)
    except OSError as e:
        notes.append(dev + ': ' + name(e.errno))
# Without a descriptor no file system can come of it; a privileged caller gets
# as far as being told so.
for kind in (b'fuse', b'fuseblk'):
    refused('mount ' + kind.decode(), 'mount', b'x\0', b'/mnt/files\0', kind + b'\0', 0, b'fd=-1\0', also=(errno.ENODEV,))
