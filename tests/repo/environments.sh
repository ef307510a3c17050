#!/usr/bin/env bash
# Runs the release tests in environments unlike the one that they are written in. No part of CI: each takes as long as the
# suite, and some build a checkout before. For root, who can make what they need: mounts, namespaces, files of others.
#
#   environments.sh list                              the environments
#   environments.sh NAME... [-- CTEST-ARGUMENT...]    a row of a table for each; NAME+NAME is one run in both
#   environments.sh all [-- CTEST-ARGUMENT...]
#
# The tests are those of build/release here (`./dev build`), or of a clone, which has what is not committed too and is
# built with this checkout's LibTorch and compiler cache. Each run has a /tmp, a /dev/shm, a home and numbers of processes
# of its own: what is there at its end, it left. Everything is removed at the end, also on a signal; build/log/environments
# keeps what the runs printed. An environment that cannot be made on this machine says so in its row.
set -euo pipefail

environments=(
  'idle          as it is here'
  'busy          as many processes of normal priority as there are cores, which compute all the time'
  'no_home       HOME unset'
  'lang_c        LANG=C'
  'comma         de_DE.UTF-8: a decimal comma'
  'umask         umask 077'
  'tmpdir        TMPDIR elsewhere, and nothing can be written to /tmp'
  'no_ipv6       a network without IPv6'
  'small_tmp     300 MB for temporary files'
  'small_disk    a clone on a disk of 300 MB: ./dev build says what is wrong'
  'full_disk     goldens written anew to a disk that is nearly full: each is the old one or the new one'
  'spaces        a clone in a path with spaces; temporary files too'
  'shallow       a shallow clone, in such a path too, as the next two are'
  'other_owner   a checkout that belongs to another user'
  'not_root      a user who is not root'
)
other_user=54321  # needs no name

self=$(realpath "${BASH_SOURCE[0]}")
root=$(realpath "$(dirname "$self")/../..")
logs=$root/build/log/environments

Die() { printf 'environments: %s\n' "$*" >&2; exit 1; }
Names() { printf '%s\n' "${environments[@]%% *}"; }

# --- Outside: what an environment needs that is no property of the run --------------------------------------------------
work=          # everything that is made
busy=()        # processes that compute
running=       # what is waited for: the leader of a session of its own
folder=        # of the current environment
checkout=
namespaces=()  # besides those that all have
cannot=        # why the current environment cannot be made here
notes=         # of the current row

CleanUp() {
  [[ -z $running ]] || { kill -- "-$running" && wait "$running"; } 2>/dev/null || true
  StopComputing
  [[ -z $work ]] || rm -rf "$work"
}

# Runs a command that a signal to this script ends as well.
Await() {
  local status=0
  setsid "$@" &
  running=$!
  wait "$running" || status=$?
  running=
  return "$status"
}

StopComputing() {
  ((${#busy[@]} == 0)) || { kill "${busy[@]}" && wait "${busy[@]}"; } 2>/dev/null || true
  busy=()
}

Make_busy() {
  local i
  for ((i = 0; i < $(nproc); ++i)); do
    (while :; do :; done) &
    busy+=($!)
  done
}

Make_comma() {
  mkdir "$work/locales"
  # 1: made, with warnings.
  localedef -i de_DE -f UTF-8 "$work/locales/de_DE.UTF-8" >/dev/null 2>&1 || (($? == 1)) ||
    { cannot='localedef makes no de_DE.UTF-8 (the package locales)'; return; }
  [[ $(LOCPATH=$work/locales LC_ALL=de_DE.UTF-8 locale decimal_point) == , ]] || cannot='the locale has no decimal comma'
}

Make_no_ipv6() { namespaces=(--net); }
Make_spaces() { Clone; }
Make_shallow() { Clone; }

Make_other_owner() {
  Clone
  chown -R "$other_user:$other_user" "$checkout"
}

Make_not_root() {
  Make_other_owner
  # Root's compiler cache is root's.
  [[ -d $work/ccache || ! -d $CCACHE_DIR ]] || cp -r "$CCACHE_DIR" "$work/ccache"
  [[ ! -d $work/ccache ]] || chown -R "$other_user:$other_user" "$work/ccache"
}

# `checkout` becomes a shallow clone in a path with spaces, with what is not committed, built: one for all that need one.
Clone() {
  checkout="$work/a path with spaces/moonshard"
  [[ ! -e $checkout/build/release/CTestTestfile.cmake ]] || { chown -R 0:0 "$checkout"; return 0; }
  CloneSources "$checkout"
  printf 'building %s\n' "$checkout" >&2
  Await "$checkout/dev" build >"$logs/build.log" 2>&1 || { tail -n 30 "$logs/build.log" >&2; cannot='its build failed'; }
}

CloneSources() {
  local into=$1 file
  mkdir -p "$(dirname "$into")"
  Git "$root" clone -q --depth 1 "file://$root" "$into"
  Git "$root" ls-files -zd | while IFS= read -r -d '' file; do rm -f "$into/$file"; done
  (cd "$root" && Git . ls-files -zco --exclude-standard | while IFS= read -r -d '' file; do
    [[ ! -e $file && ! -L $file ]] || printf '%s\0' "$file"
  done | tar -cf - --null -T -) | tar -xf - -C "$into" --no-same-owner
}

# Whoever owns the folder.
Git() { git -c safe.directory='*' -C "$@"; }

# --- Inside: a run in namespaces of its own, as their first process -----------------------------------------------------
as=()  # what starts the tests as another user

Enter_no_home() { unset HOME; }

Enter_lang_c() {
  ForgetLocale
  export LANG=C
}

Enter_comma() {
  ForgetLocale
  export LOCPATH=$work/locales LANG=de_DE.UTF-8 LC_ALL=de_DE.UTF-8
}

ForgetLocale() {
  local name
  for name in LANGUAGE $(compgen -e LC_ || true); do unset "$name"; done
}

Enter_umask() { umask 077; }

Enter_tmpdir() {
  mkdir "$folder/elsewhere"
  export TMPDIR=$folder/elsewhere
  mount -o remount,bind,ro /tmp
}

Enter_spaces() {
  mkdir "$folder/temporary files"
  export TMPDIR="$folder/temporary files"
}

Enter_no_ipv6() {
  echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
  ip link set lo up
  [[ -z $(ip -6 address) ]]
}

Enter_small_tmp() { mount -t tmpfs -o size=300m,mode=1777 tmpfs /tmp; }

Enter_not_root() {
  chown -R "$other_user:$other_user" "$folder"
  as=(setpriv --reuid "$other_user" --regid "$other_user" --clear-groups)
  export CCACHE_DIR=$work/ccache
}

# All that the run writes into the checkout is on a small disk, which nobody else sees; the build folder is as it was.
Enter_full_disk() {
  local disk=$folder/disk
  mkdir "$disk" "$folder/build"
  mount -t tmpfs -o size=300m tmpfs "$disk"
  mkdir "$disk/upper" "$disk/work"
  mount --bind "$checkout/build" "$folder/build"
  mount -t overlay overlay -o "lowerdir=$checkout,upperdir=$disk/upper,workdir=$disk/work" "$checkout"
  mount --bind "$folder/build" "$checkout/build"
  cd "$checkout"
  cat /dev/zero >"$disk/filler" 2>/dev/null || true
  truncate -s -32K "$disk/filler"  # some goldens fit, others do not fit as a whole
  export APPROVE=1
}

Run_full_disk() {
  local refused
  Run_tests -LE gpu -E 'consumer|repo_' "$@"
  refused=$(grep -c 'cannot write the golden' "$folder/output" || true)
  echo "$refused goldens were refused: no space" >"$folder/notes"
}

Run_small_disk() {
  local disk=$folder/disk status=0
  mkdir "$disk"
  mount -t tmpfs -o size=300m tmpfs "$disk"
  CloneSources "$disk/moonshard"
  cd "$disk/moonshard"
  ./dev build >"$folder/output" 2>&1 || status=$?
  cat "$folder/output"
  if ((status != 0)) && grep -qE 'No space left on device|MB are free in build' "$folder/output"; then
    grep -hoE 'dev: only .*|[^:]*: No space left on device' "$folder/output" | tail -n 1 >"$folder/notes"
  else
    echo "NOT as it should be: status $status, and nothing is said of the disk" >"$folder/notes"
  fi
  cd "$checkout"
}

Run_tests() {
  "${as[@]}" env -u MOONSHARD_TORCH_ROOT ctest --preset release -j "$(nproc)" --output-junit "$folder/junit.xml" "$@" 2>&1 </dev/null |
    tee "$folder/output" || true
}

# Inside NAME WORK CHECKOUT [CTEST-ARGUMENT...]
Inside() {
  local name=$1 part
  work=$2 checkout=$3
  folder=$work/run_$name
  shift 3
  mount --bind "$folder/tmp" /tmp
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  cd "$checkout"
  export HOME=$folder/home
  unset TMPDIR
  for part in ${name//+/ }; do ! Defined "Enter_$part" || "Enter_$part"; done
  Sums >"$folder/before"
  local start=$SECONDS
  if Defined "Run_$name"; then "Run_$name" "$@"; else Run_tests "$@"; fi
  echo $((SECONDS - start)) >"$folder/seconds"
  sleep 1  # for what is about to end
  Left >"$folder/left"
}

# What the run left, one thing a line.
Left() {
  local place processes
  processes=$(pgrep -a .)
  { grep -vF "$self inside" <<<"$processes" || true; } | sed 's/^[0-9]*/process:/'
  for place in /tmp /dev/shm "$folder/home" "${TMPDIR:-}"; do
    [[ -z $place ]] || find "$place" -mindepth 1 -maxdepth 1 | sort
  done
  { Sums | diff "$folder/before" - || true; } | sed -n 's/^[<>] [0-9a-f]*  /changed: /p' | sort -u
}

# The content of the checkout's files; what git ignores is not looked at.
Sums() {
  Git . ls-files -zco --exclude-standard | sort -z | xargs -0 sha256sum 2>/dev/null || true
}

Defined() { [[ $(type -t "$1") == function ]]; }

# --- The table ----------------------------------------------------------------------------------------------------------
# Of the whole run.
Attribute() { sed -n "/^[[:space:]]*$1=\"/{s/[^\"]*\"\([^\"]*\)\".*/\1/p;q}" "$folder/junit.xml" 2>/dev/null || true; }

FailedTests() { { grep 'status="fail"' "$folder/junit.xml" || true; } | cut -d '"' -f 2 | paste -sd ' ' | sed 's/./: &/'; }

PrintRow() { printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$@"; }

Row() {
  local name=$1 part failed skipped tests seconds left
  shift
  folder=$work/run_$name checkout=$root namespaces=() cannot='' notes=''
  mkdir -p "$folder/tmp" "$folder/home"
  chmod 1777 "$folder/tmp"
  for part in ${name//+/ }; do ! Defined "Make_$part" || "Make_$part"; done
  if [[ -n $cannot ]]; then
    PrintRow "$name" - - - - - "not tried: $cannot"
    return
  fi
  Await unshare --mount --pid --fork --kill-child --mount-proc "${namespaces[@]}" \
    "$self" inside "$name" "$work" "$checkout" "$@" >"$logs/$name.log" 2>&1 || notes="the run ended with $?: $logs/$name.log. "
  StopComputing
  tests=$(Attribute tests) failed=$(Attribute failures) skipped=$(Attribute skipped)
  seconds=$(cat "$folder/seconds" 2>/dev/null || echo -)
  left=$(paste -sd ';' "$folder/left" 2>/dev/null || true)
  notes+=$(cat "$folder/notes" 2>/dev/null || true)
  if [[ -n $tests ]]; then
    PrintRow "$name" $((tests - failed - skipped)) "$failed$(FailedTests)" "$skipped" "$seconds" "${left:-nothing}" "$notes"
  else
    PrintRow "$name" - - - "$seconds" "${left:-nothing}" "$notes"
  fi
  [[ $name != idle ]] || Slow
}

# The tests that were nearer to their timeout than a factor of four, where nothing else was at work.
Slow() {
  [[ -e $folder/junit.xml ]] || return 0
  (cd "$checkout" && ctest --preset release --show-only=json-v1) | python3 -c '
import json, sys, xml.etree.ElementTree
limits = {}
for test in json.load(sys.stdin)["tests"]:
    values = {one["name"]: one["value"] for one in test.get("properties", [])}
    limits[test["name"]] = values.get("TIMEOUT", 1500)
for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
    seconds, limit = float(case.get("time")), limits[case.get("name")]
    if 4 * seconds > limit:
        print("nearer to its timeout than a factor of four: %s, %.0f of %.0f s" % (case.get("name"), seconds, limit))
' "$folder/junit.xml"
}

# Known NAME[+NAME...]: those that run something else than the tests stand alone.
Known() {
  local part
  for part in ${1//+/ }; do
    Names | grep -qx -- "$part" || Die "no environment '$part'; environments.sh list shows them"
    [[ $part == "$1" ]] || ! Defined "Run_$part" || Die "'$part' runs other tests than the rest: alone, please"
  done
}

Main() {
  local names=() name
  while (($# > 0)); do
    case $1 in
      --) shift; break ;;
      list) printf '%s\n' "${environments[@]}"; return ;;
      all) mapfile -t names < <(Names) ;;
      *) Known "$1"; names+=("$1") ;;
    esac
    shift
  done
  ((${#names[@]} > 0)) || Die "which environment? environments.sh list shows them"
  ((EUID == 0)) || Die "only root can make them"
  unshare --mount --pid --fork --mount-proc true || Die "no namespaces can be made here"
  [[ $root != /tmp/* ]] || Die "each run has a /tmp of its own, which would hide this checkout"
  [[ -e $root/build/release/CTestTestfile.cmake ]] || Die "nothing is built: ./dev build"
  MOONSHARD_TORCH_ROOT=$(sed -n 's/^MOONSHARD_TORCH_ROOT:[A-Z]*=//p' "$root/build/release/CMakeCache.txt")
  CCACHE_DIR=$(ccache -k cache_dir 2>/dev/null || echo "$HOME/.cache/ccache")
  export MOONSHARD_TORCH_ROOT CCACHE_DIR
  mkdir -p "$logs"
  trap CleanUp EXIT
  trap 'exit 130' INT TERM HUP
  work=$(mktemp -d /var/tmp/moonshard-environments.XXXXXX)
  chmod 755 "$work"
  PrintRow environment passed failed skipped seconds left notes
  PrintRow --- --- --- --- --- --- ---
  for name in "${names[@]}"; do Row "$name" "$@"; done
}

if [[ ${1:-} == inside ]]; then
  shift
  Inside "$@"
else
  Main "$@"
fi
