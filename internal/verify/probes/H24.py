import time
print('asleep', flush=True)
time.sleep(P['seconds'])
bad.append('slept for %.1f s' % P['seconds'])
