text = '\n'.join('%s=%s' % kv for kv in os.environ.items())
for p in os.listdir('/proc'):
    if p.isdigit():
        text += (readable('/proc/%s/environ' % p, 1 << 16) or b'').decode('utf-8', 'replace')
        text += (readable('/proc/%s/cmdline' % p, 1 << 16) or b'').decode('utf-8', 'replace')
for base in ('/etc', '/run', '/tmp', '/mnt', '/var', '/opt', '/root', '/home', '/srv'):
    for d, dirs, files in os.walk(base):
        for f in files:
            path = os.path.join(d, f)
            try:
                if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) < 65536:
                    text += (readable(path, 65536) or b'').decode('utf-8', 'replace')
            except OSError:
                pass
# The canary is given in two halves, so that this program's own text is not it.
canary = P['canary'][0] + P['canary'][1]
if canary in text:
    bad.append('the canary is inside')
notes.append('%d bytes of environment, command lines and files without the canary' % len(text))
known = {'HOME', 'LANG', 'PATH', 'TMPDIR', 'USER', 'LOGNAME', 'SHELL', 'PWD', 'SHLVL', '_', 'MPLBACKEND', 'NODE_PATH', 'PYTHONUNBUFFERED', 'PYTHONDONTWRITEBYTECODE', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'NUMEXPR_MAX_THREADS', 'WORKBENCH_SOCKET', 'WORKBENCH_TOKEN', 'LC_CTYPE', 'LC_ALL', 'PYTHONHASHSEED', 'PYTHONPATH', 'MALLOC_ARENA_MAX', 'UV_THREADPOOL_SIZE', 'NODE_OPTIONS', 'PYTHONPYCACHEPREFIX', 'MPLCONFIGDIR', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'TZ', 'TERM', 'PYTHONIOENCODING', 'PYTHONUTF8'}
more = sorted(set(os.environ) - known)
if more:
    bad.append('the environment also has ' + ', '.join(more))
