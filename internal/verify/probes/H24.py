import time
print('asleep', flush=True)
time.sleep(P['seconds'])
bad.append('slept for %d s' % P['seconds'])
