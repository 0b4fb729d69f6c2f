import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(8)
        os.write(1, b'\noutlived\n')
    os._exit(0)
os.wait()
