# SPDX-License-Identifier: MIT
#
# lib.sh: what the tests of the command share. Read with: . "$HERE/lib.sh"

fail()
{
    echo "FAIL: $*"
    for file in "$TMP/out" "$TMP/err"; do
        [ ! -s "$file" ] || { echo "--- $file"; cat "$file"; }
    done
    exit 1
}

# not_run WHAT: WHY: the system does not let the rest be tried. Named in the last lines of the whole run.
not_run()
{
    echo "# not run: $*"
}

# expect CODE COMMAND ...: fails unless COMMAND exits with CODE. Its output is in $TMP/out and $TMP/err.
expect()
{
    expected=$1
    shift
    code=0
    "$@" >"$TMP/out" 2>"$TMP/err" || code=$?
    [ "$code" -eq "$expected" ] || fail "exit code $code instead of $expected: $*"
}

# said TEXT: the last command said one line on stderr, and TEXT is in it.
said()
{
    [ "$(wc -l <"$TMP/err")" -eq 1 ] || fail "not one line on stderr"
    grep -q '^holdfast: ' "$TMP/err" || fail "the line on stderr does not start with 'holdfast: '"
    grep -qF -- "$1" "$TMP/err" || fail "stderr does not contain: $1"
}

# printed TEXT: it is in the output of the last command.
printed()
{
    grep -qF -- "$1" "$TMP/out" || fail "the output does not contain: $1"
}

same()
{
    [ "$1" = "$2" ] || fail "'$1' instead of '$2'${3:+ ($3)}"
}

# until_true CONDITION: waits for it, for 30 seconds at the most, which only a failure takes.
until_true()
{
    turns=0
    until eval "$1"; do
        turns=$((turns + 1))
        [ $turns -lt 1500 ] || fail "did not come true: $1"
        sleep 0.02
    done
}

# The state letter of a process in /proc; nothing if there is none.
state_of()
{
    sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null || :
}

# gone PID: there is no such process, or it is dead and nobody has looked yet.
gone()
{
    case $(state_of "$1") in
    '' | Z | X) return 0 ;;
    esac
    return 1
}

free()
{
    code=0
    "$HOLDFAST" status "$1" >/dev/null || code=$?
    [ $code -eq 1 ]
}

held()
{
    "$HOLDFAST" status "$1" >/dev/null
}

# json EXPRESSION: the output of the last command is JSON, and the Python expression about it, `it`, is true.
json()
{
    python3 -m json.tool "$TMP/out" >/dev/null || fail "not JSON"
    python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
sys.exit(not eval(sys.argv[2]))' "$TMP/out" "$1" || fail "not true of the output: $1"
}

# manual TEXT: the example of holdfast(1) that contains it, as it is printed.
manual()
{
    awk -v text="$1" '/^\.Bd -literal/ { block = ""; inside = 1; next }
        /^\.Ed/ { if (inside && index(block, text)) printf "%s", block; inside = 0 }
        /^\.Dl / && index($0, text) { sub(/^\.Dl (\$ )?/, ""); print }
        inside { block = block $0 "\n" }' "$HERE/../../docs/man/holdfast.1" |
        sed 's/\\-/-/g; s/\\(dq/"/g; s/\\(aq/'"'"'/g'
}

# For the tests of completion: $TMP/bin in front of PATH, with holdfast and a command that no other name begins like;
# one lock whose work is done, and two that are held until hold_no_more.
hold_for_completion()
{
    mkdir bin
    ln -s "$HOLDFAST" bin/holdfast
    printf '#!/bin/sh\n' >bin/zz-unique-command
    chmod +x bin/zz-unique-command
    PATH=$TMP/bin:$PATH
    holdfast run --once-per 1h 'work done' -- true
    for name in nightly "two  words, it's"; do
        holdfast run "$name" -- sh -c 'until [ -e done ]; do sleep 0.02; done' &
    done
    until_true '[ "$(holdfast ls --names | wc -l)" -eq 2 ]'
}

hold_no_more()
{
    touch done
    wait
}

# case_of LINE WORDS: one of them for complete.py.
case_of()
{
    printf '%s\n' "$@" >>cases
}

# types SHELL FILE: what bash and zsh make of lines on a terminal, those of $TMP/cases too. Both add what is missing if
# there is only one way to go on.
types()
{
    case_of 'holdfast sta' 'holdfast|status'
    case_of 'holdfast help gua' 'holdfast|help|guard'
    case_of 'holdfast run --on-lost ki' 'holdfast|run|--on-lost|kill'
    case_of 'holdfast run --no-re' 'holdfast|run|--no-renew'
    case_of 'holdfast ls --reach mach' 'holdfast|ls|--reach|machines'
    for command in run hold ls status break; do
        case_of "holdfast $command ni" "holdfast|$command|nightly"
        case_of "holdfast $command tw" "holdfast|$command|two  words, it's"
        # No word of the table's head, which is no lock's name.
        case_of "holdfast $command N" "holdfast|$command|N"
        case_of "holdfast $command A" "holdfast|$command|A"
    done
    case_of 'holdfast forget wo' 'holdfast|forget|work done'
    case_of 'holdfast forget ni' 'holdfast|forget|ni'
    case_of 'holdfast status wo' 'holdfast|status|wo'
    case_of 'holdfast status two\ \ w' "holdfast|status|two  words, it's"
    case_of "holdfast -u 'file://$TMP/locks' status ni" "holdfast|-u|file://$TMP/locks|status|nightly"
    case_of "holdfast status -u 'file://$TMP/locks' ni" "holdfast|status|-u|file://$TMP/locks|nightly"
    # A store on the network is not asked.
    case_of 'holdfast -u redis://127.0.0.1:1 status ni' 'holdfast|-u|redis://127.0.0.1:1|status|ni'
    # A command is completed where it stands, and no sooner.
    case_of 'holdfast run x zz-uni' 'holdfast|run|x|zz-unique-command'
    case_of 'holdfast run -n -w 2s x -- zz-uni' 'holdfast|run|-n|-w|2s|x|--|zz-unique-command'
    case_of 'holdfast run zz-uni' 'holdfast|run|zz-uni'
    mkdir folder
    touch folder/zz-file
    case_of 'holdfast run x -- cat folder/zz' 'holdfast|run|x|--|cat|folder/zz-file'
    expect 0 python3 "$HERE/complete.py" "$1" "$2" <cases
}
