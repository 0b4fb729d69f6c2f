import socket
for d in ('/usr/bin', '/usr/sbin', '/bin', '/sbin', '/usr/local/bin', '/opt/workbench/packages'):
    for f in ('at', 'atd', 'batch', 'cron', 'crond', 'crontab', 'systemd-run', 'systemctl', 'dbus-send', 'dbus-daemon', 'busctl', 'anacron', 'fcrontab'):
        if os.path.lexists(d + '/' + f):
            bad.append(d + '/' + f)
for path in ('/run/dbus/system_bus_socket', '/var/run/dbus/system_bus_socket', '/run/systemd/private', '/run/systemd/notify', '/run/user/1000/bus'):
    if os.path.exists(path):
        bad.append(path)
for d in ('/var/spool/cron', '/var/spool/cron/crontabs', '/var/spool/at', '/etc/cron.d'):
    if os.access(d, os.W_OK):
        bad.append('can write ' + d)
notes.append('no scheduler, no bus')
