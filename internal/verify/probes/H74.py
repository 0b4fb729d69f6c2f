import subprocess
text = ''
for path in ('/proc/self/mountinfo', '/proc/mounts', '/proc/self/mountstats', '/proc/self/cgroup', '/proc/1/cgroup', '/proc/partitions', '/proc/diskstats'):
    text += (readable(path, 1 << 18) or b'').decode('utf-8', 'replace')
for argv in (['df', '-a'], ['lsns'], ['findmnt'], ['hostname'], ['uname', '-a']):
    try:
        done_ = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        text += done_.stdout
    except (OSError, subprocess.TimeoutExpired):
        pass
# Given in hexadecimal, so that this program's own command line is not it.
for word in (bytes.fromhex(h).decode() for h in P['secret']):
    if word in text:
        line = next((l for l in text.splitlines() if word in l), '')
        bad.append('%s in: %s' % (word, line[:300]))
notes.append('%d bytes of mounts, disks and name spaces name nothing of the server' % len(text))
