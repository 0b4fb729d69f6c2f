# Who is there: the processes whose command line holds the marker.
found = []
for p in os.listdir('/proc'):
    if p.isdigit() and int(p) != os.getpid():
        line = readable('/proc/%s/cmdline' % p) or b''
        if P['marker'].encode() in line and b'python' not in line:
            found.append(p)
if found:
    bad.append('sees process %s of %s' % (', '.join(found), P['whose']))
notes.append('sees nothing of ' + P['whose'])
