#!/bin/sh
# Puts a program and all that it needs to run into an empty folder: no shell, no package manager.
#
# Usage: rootfs.sh PROGRAM FOLDER
set -eu
program=$1
root=$2

mkdir -p "$root/usr/local/bin" "$root/etc/ssl/certs" "$root/tmp" "$root/data" "$root/flows"
cp "$program" "$root/usr/local/bin/flowgate"
chmod 0755 "$root/usr/local/bin/flowgate"
chmod 1777 "$root/tmp"

# The loader and the libraries, at the paths at which the loader looks for them.
ldd "$program" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
# Names of hosts are resolved by libraries that the program loads when it needs them.
for library in /lib/*-linux-gnu/libnss_dns.so.2 /lib/*-linux-gnu/libnss_files.so.2 \
    /lib/*-linux-gnu/libresolv.so.2; do
    if [ -e "$library" ]; then
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    fi
done

if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
echo 'flowgate:x:65532:65532:flowgate:/data:/sbin/nologin' >"$root/etc/passwd"
echo 'flowgate:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
