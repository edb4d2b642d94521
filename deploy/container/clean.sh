#!/bin/sh
# Removes from the root of the image what only the build needs: installers and build tools, package lists, manuals and
# logs; and the byte code of the base, which is not read where PYTHONPYCACHEPREFIX is set. Also removes the setuid and
# setgid bits of all programs.
set -eu
for place in /usr/lib/python3 /usr/lib/python3.* /usr/local/lib/python3.* /opt/venv/lib /usr/share/python-wheels; do
  [ ! -d "$place" ] || find "$place" -depth \( -name 'pip' -o -name 'pip-*' -o -name 'setuptools' -o -name 'setuptools-*' -o -name pkg_resources \
    -o -name wheel -o -name 'wheel-*' -o -name '*.whl' -o -name _distutils_hack -o -name distutils-precedence.pth -o -name ensurepip \) -exec rm -rf {} +
done
find /usr -xdev -name __pycache__ -prune -exec rm -rf {} +
rm -f /usr/bin/pip* /usr/local/bin/pip* /usr/bin/wheel /usr/local/bin/wheel
rm -rf /usr/share/doc /usr/share/info /usr/share/locale /usr/share/man /var/cache/* /var/lib/apt/lists/* /var/log/* /root/.cache
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
