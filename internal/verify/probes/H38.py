import fcntl, time
f = open('/etc/passwd')
try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    notes.append('took the lock')
except OSError as e:
    bad.append('sees that another session holds the lock')
print('holding', flush=True)
time.sleep(P['seconds'])
