#!/bin/sh
# The first process of the machine: it lays memory over the host's files, makes the groups that systemd makes, and runs
# a command. The file "$settings" sets user (root, delegated or login), modules, folder, python, and the command's words.
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
finish() { echo "exit code: $1"; busybox poweroff -f; }
. "$settings"

mount -t proc proc /proc
mount -t ext4 /dev/ubda /mnt && mkdir /mnt/upper /mnt/work /mnt/root || finish 96
mkdir -m 1777 /mnt/tmp && mkdir -p /mnt/gymnast || finish 96
busybox insmod "$(find "$modules" -name overlay.ko)" || finish 97
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/root || finish 98
cd /mnt/root || finish 99
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t devtmpfs devtmpfs dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
for name in dev/shm run; do mount -t tmpfs -o mode=1777 tmpfs $name; done
mkdir -p var/cache/gymnast
mount --bind /mnt/tmp tmp # nothing that a box is made of may be on an overlay
mount --bind /mnt/gymnast var/cache/gymnast
ln -sfn /proc/self/fd dev/fd
busybox ip link set lo up
mkdir tmp/home && chown 1000:1000 tmp/home
for path in "$folder" "$python"; do # an ordinary user may enter the checkout, and the folder of its Python
  while path=$(dirname "$path") && [ "$path" != / ]; do chmod o+x ".$path"; done
done

busybox pivot_root . mnt && umount -l /mnt || finish 92 # in a mere chroot an ordinary user may make no namespaces
cd /sys/fs/cgroup || finish 95
share() { for path in "$@"; do echo "+memory +pids" > "$path/cgroup.subtree_control" || finish 94; done; }
service=user.slice/user-1000.slice/user@1000.service # of the user's own manager
mkdir -p user.slice/user-1000.slice/session-1.scope system.slice/tests.service $service/app.slice/tests.scope
share . system.slice user.slice user.slice/user-1000.slice $service $service/app.slice
for path in $service $service/app.slice $service/app.slice/tests.scope; do
  chown 1000:1000 $path $path/cgroup.procs $path/cgroup.threads $path/cgroup.subtree_control
done
case $user in
  root) own=system.slice/tests.service ;;
  delegated) own=$service/app.slice/tests.scope ;;
  login) own=user.slice/user-1000.slice/session-1.scope ;; # a shell behind `ssh` or on a console
esac
echo 0 > $own/cgroup.procs || finish 93
cd "$folder" || finish 91
[ $user = root ] || set -- setpriv --reuid=1000 --regid=1000 --clear-groups "$@"
env -i MACHINE_USER="$user" HOME=/tmp/home PATH="$PATH" GYMNAST_REQUIRE_ALL=1 PYTHONDONTWRITEBYTECODE=1 "$@" < /dev/null 2>&1
code=$?
left=$(find /sys/fs/cgroup -name 'gymnast-*')
echo "groups left: ${left:-none}"
finish $code
