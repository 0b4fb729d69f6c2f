for flags in (0, 1, 0o4001):
    refused('userfaultfd %o' % flags, 'userfaultfd', flags)
reaches('/dev/userfaultfd', lambda: os.close(os.open('/dev/userfaultfd', os.O_RDWR)))
