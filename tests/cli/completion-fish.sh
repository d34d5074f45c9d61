# SPDX-License-Identifier: MIT
# The completion for fish: what it offers for the last word of a line.
. "$HERE/lib.sh"
completions=$(cd "$HERE/../../completions" && pwd)
hold_for_completion
mkdir -p folder
touch folder/zz-file

offers() # LINE OFFER ...: these and no others
{
    line=$1
    shift
    printf '%s\n' "$@" >wanted
    expect 0 fish --no-config -c 'source $argv[1]; complete -C $argv[2]' -- "$completions/holdfast.fish" "$line"
    cut -f 1 out | sed '/^$/d' | cmp -s - wanted || fail "fish offers something else for: $line"
}
nothing() # LINE
{
    expect 0 fish --no-config -c 'source $argv[1]; complete -C $argv[2]' -- "$completions/holdfast.fish" "$1"
    same "$(cat out)" "" "$1"
}

offers 'holdfast sta' status
offers 'holdfast help gua' guard
offers 'holdfast run --on-lost ki' kill
offers 'holdfast run --no-re' --no-renew
offers 'holdfast ls --reach mach' machines
for command in run hold ls status break; do
    offers "holdfast $command ni" nightly
    offers "holdfast $command tw" "two  words, it's"
    offers "holdfast $command " nightly "two  words, it's"
    nothing "holdfast $command AME"
done
offers 'holdfast forget ' 'work done'
nothing 'holdfast forget ni'
offers "holdfast -u file://$TMP/locks status ni" nightly
offers "holdfast status -u file://$TMP/locks ni" nightly
nothing 'holdfast -u redis://127.0.0.1:1 status ni'
# A command is completed where it stands, and no sooner, and has its own options.
offers 'holdfast run x zz-uni' zz-unique-command
offers 'holdfast run -n -w 2s x -- zz-uni' zz-unique-command
nothing 'holdfast run zz-uni'
nothing 'holdfast run x -- zz-unique-command --no-re'
offers 'holdfast run x -- cat folder/zz' folder/zz-file
nothing 'holdfast run --note '
hold_no_more
nothing 'holdfast status '
