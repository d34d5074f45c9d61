# SPDX-License-Identifier: MIT
# What makes no sense is refused with a sentence and 64; what the system refuses, with 77 or 70. Nothing runs,
# and nothing stays locked.
. "$HERE/lib.sh"

never() # CODE TEXT ARGUMENT ...
{
    expected=$1 text=$2
    shift 2
    expect "$expected" "$HOLDFAST" "$@"
    said "$text"
    [ ! -e ran ] || fail "the command ran: $*"
}

never 64 "a command is missing"
never 64 "unknown command 'fly'" fly
never 64 "unknown option '--fly'" --fly
never 64 "option '-x'" -x
never 64 "option '-u'" -u
never 64 "takes no argument" --json=yes ls
never 64 "name of a lock is missing" run
never 64 "command to run is missing" run x
never 64 "command to run is missing" run x --
never 64 "unknown option '--fly'" run --fly x touch ran
never 64 "lacks its argument" run --wait
never 64 "name of a lock is missing" status
never 64 "name of a lock is missing" break
never 64 "too many arguments" ls a b
never 64 "too many arguments" status a b
never 64 "one name at a time" break a b
never 64 "too many arguments" engines a
never 64 "unknown option" ls --fly
never 64 "unknown option" break --fly
never 64 "unknown option" engines --fly

# The URL.
never 64 "nosuch" -u nosuch://host run x touch ran
never 64 "scheme" -u : run x touch ran
never 64 "" -u "" run x touch ran
never 64 "" -u /just/a/path run x touch ran
never 64 "" -u file://relative/dir run x touch ran
HOLDFAST_URL=nosuch: never 64 "nosuch" ls

# The name.
long=$(printf '%256s' '' | tr ' ' a)
never 64 "name" run "" touch ran
never 64 "name" run "$long" touch ran
never 64 "name" run "$(printf 'a\tb')" touch ran
never 64 "name" run "$(printf 'a\nb')" touch ran
never 64 "name" run "$(printf '\377')" touch ran
never 64 "name" status ""
never 64 "name" status "$long"
never 64 "name" status "$(printf 'a\033b')"
never 64 "name" break ""
never 64 "name" break "$long"
expect 0 "$HOLDFAST" run "${long%a}" -- true
for name in a a/b ../x A 锁 %00 . .. / ' ' -n 'x y' "it's"; do
    expect 0 "$HOLDFAST" run -n -- "$name" -- true
done
[ ! -e x ] || fail "a name led out of the directory"

# Numbers and notes.
never 64 "negative" run -w -1 x touch ran
never 64 "not a duration" run -w soon x touch ran
never 64 "no time at all" run -t 0 x touch ran
never 64 "no time at all" run --max-hold 0 x touch ran
never 64 "" run -t 99ms x touch ran
never 64 "0 to 255" run -E 256 x touch ran
never 64 "0 to 255" run -E -1 x touch ran
never 64 "0 to 255" run -E seven x touch ran
never 64 "neither term nor kill nor ignore" run --on-lost panic x touch ran
never 64 "note" run --note "$long" x touch ran
never 64 "note" run --note "$(printf 'a\033[2Jb')" x touch ran

# An engine that is known but not installed is a store out of reach.
missing=$("$HOLDFAST" engines --json | python3 -c 'import json, sys
print(next((e["schemes"][0] for e in json.load(sys.stdin) if not e["present"]), ""))')
[ -z "$missing" ] || never 69 "engine is not" -u "$missing//localhost" run x touch ran

# A directory that this user must not use. Root may write anywhere, but does not trust a directory of somebody else.
mkdir -m 700 theirs
if [ "$(id -u)" -eq 0 ]; then chown 65534 theirs; else chmod 500 theirs; fi
never 77 "theirs" -u "file://$TMP/theirs" run x touch ran
touch plain-file
never 64 "plain-file" -u "file://$TMP/plain-file" run x touch ran

# No descriptors left: with fewer than it takes the run is refused, whichever of them is missing.
# (A build with the leak sanitizer needs descriptors of its own to look for leaks at its end.)
refused=0
for limit in 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    rm -f ran
    code=0
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
        sh -c "ulimit -n $limit; exec \"\$HOLDFAST\" run x -- touch ran" >out 2>err || code=$?
    case $code in
    0) [ -e ran ] || fail "the command did not run with $limit descriptors" ;;
    70)
        said ""
        [ ! -e ran ] || fail "the command ran with $limit descriptors, and the exit code says that it did not"
        refused=$((refused + 1))
        ;;
    *) fail "exit code $code with $limit descriptors" ;;
    esac
    free x || fail "x is still held after a run with $limit descriptors"
done
[ $refused -gt 0 ] && [ -e ran ] || fail "the limit on descriptors has no effect, or 16 are too few"
rm -f ran

# A lock file full of garbage: refused, because the last token is not known any more, and left as it is for whoever
# mends it.
"$HOLDFAST" run g -- true
head -c 5000 /dev/urandom >garbage
cp garbage locks/g
never 70 "g is damaged" run g touch ran
cmp garbage locks/g || fail "the damaged file was changed"
expect 0 "$HOLDFAST" run -n x -- true

# Output that cannot be written.
expect 70 sh -c '"$HOLDFAST" engines >/dev/full'
said "cannot write"
free x || fail "x is still held"
