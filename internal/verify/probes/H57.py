# Sets what is already so.
import time
refused('settimeofday: time zone', 'settimeofday', 0, b'\0' * 8)
timex = ctypes.create_string_buffer(208)
raw('adjtimex', timex)
timex[0:4] = (0x4000).to_bytes(4, 'little')   # ADJ_TICK, to the tick it has
refused('adjtimex', 'adjtimex', timex)
refused('clock_adjtime', 305 if X86 else 266, 0, timex)
now = time.time_ns()
refused('clock_settime', 'clock_settime', 0, (now // 10**9).to_bytes(8, 'little') + (now % 10**9).to_bytes(8, 'little'))
