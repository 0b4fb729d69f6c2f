import resource
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    bad.append('the limit on core files was raised')
except (OSError, ValueError):
    notes.append('the limit on core files stays %d' % hard)
if hard:
    bad.append('core files may have %d bytes' % hard)
os.chdir('/mnt/files')
before = set(os.listdir('/mnt/files')) | set(os.listdir('/tmp'))
pid = os.fork()
if pid == 0:
    canary = P['marker'] * 100
    ctypes.string_at(8)
_, st = os.waitpid(pid, 0)
if not os.WIFSIGNALED(st):
    bad.append('it did not crash')
elif os.WCOREDUMP(st):
    bad.append('a core was written')
new = (set(os.listdir('/mnt/files')) | set(os.listdir('/tmp'))) - before
if new:
    bad.append('left ' + ', '.join(sorted(new)))
