# Arguments that no kernel can act on: a caller with the privilege is told that
# they are wrong, one without is refused before.
refused('reboot', 'reboot', 1, 2, 3, 0)
refused('kexec_load', 'kexec_load', 0, 1 << 20, 0, 0)
refused('swapon', 'swapon', b'/mnt/files/absent\0', 0)
refused('swapoff', 'swapoff', b'/mnt/files/absent\0')
refused('acct', 'acct', b'/mnt/files/absent\0')
refused('syslog', 'syslog', 10, 0, 0)
refused('quotactl', 'quotactl', 0x800007 << 8, b'/mnt/files/absent\0', 0, ctypes.create_string_buffer(256))
refused('sethostname', 'sethostname', b'verify', 6)
