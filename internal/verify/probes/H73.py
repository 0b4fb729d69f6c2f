for f in ('environ', 'maps', 'mem', 'stack', 'syscall', 'auxv'):
    got = readable('/proc/1/' + f, 4096)
    if got:
        bad.append('/proc/1/%s: %d bytes' % (f, len(got)))
for f in ('root', 'cwd', 'exe'):
    try:
        bad.append('/proc/1/%s is %s' % (f, os.readlink('/proc/1/' + f)))
    except OSError as e:
        notes.append('%s: %s' % (f, name(e.errno)))
line = (readable('/proc/1/cmdline', 4096) or b'').decode('utf-8', 'replace').replace('\0', ' ')
data['cmdline'] = line
# Given in hexadecimal, so that this program's own command line is not it.
for word in (bytes.fromhex(h).decode() for h in P['secret']):
    if word in line:
        bad.append('the command line of process 1 has ' + word)
notes.append('command line: ' + line)
