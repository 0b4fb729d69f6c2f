# The names that programs look for.
set -eu
ln -sfn python3 /usr/bin/python
if [ ! -e /usr/bin/node ] && [ -e /usr/bin/nodejs ]; then
	ln -s nodejs /usr/bin/node
fi
