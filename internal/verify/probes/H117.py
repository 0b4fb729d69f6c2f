# Walks to the operating system by every road the language has; all of them end
# at the same wall.
import builtins, importlib
roads = []
for c in ().__class__.__base__.__subclasses__():
    g = getattr(getattr(c, '__init__', None), '__globals__', {})
    if 'sys' in g and getattr(g['sys'], 'modules', None):
        roads.append(g['sys'].modules['os'])
        break
roads.append(importlib.import_module('posix'))
roads.append(builtins.__import__('os'))
roads.append(eval("__import__('os')"))
class Hook:
    def find_spec(self, name, path=None, target=None):
        return None
sys.meta_path.insert(0, Hook())
for r in roads:
    if r.getuid() != 1000 or r.geteuid() != 1000:
        bad.append('runs as user %d' % r.geteuid())
    for path in ('/etc/passwd', '/usr/bin/python3', '/opt/workbench/bin/guest', '/run/workbench/lib'):
        try:
            r.close(r.open(path, 1))
            bad.append('opens %s for writing' % path)
        except OSError:
            pass
    try:
        r.setuid(0)
        bad.append('became root')
    except OSError:
        pass
# By the C library, past every object of the language.
if libc.setresuid(0, 0, 0) == 0:
    bad.append('became root by the C library')
with open('/proc/self/status') as f:
    for line in f:
        if line.startswith('CapEff') and int(line.split()[1], 16):
            bad.append('has capabilities ' + line.split()[1])
notes.append('%d roads, one wall' % len(roads))
