own = 0
for p in sorted((p for p in os.listdir('/proc') if p.isdigit()), key=int):
    got = readable('/proc/%s/environ' % p, 1 << 16)
    uid = os.stat('/proc/' + p).st_uid
    if int(p) == os.getpid():
        own += 1
        continue
    if got:
        bad.append('environment of process %s of user %d: %d bytes' % (p, uid, len(got)))
notes.append('%d process, its own' % own)
if not own:
    bad.append('does not see itself')
