import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 32)))
for s in range(1, 32):
    try:
        signal.signal(s, signal.SIG_IGN)
    except OSError:
        pass
print('deaf', flush=True)
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
end = time.monotonic() + P['seconds']
while time.monotonic() < end:
    time.sleep(0.05)
bad.append('lived on for %.1f s' % P['seconds'])
