# SPDX-License-Identifier: MIT
# The completion for bash, word by word and on a terminal; those for all three shells know every option.
. "$HERE/lib.sh"
completions=$HERE/../../completions

bash -n "$completions/holdfast.bash" || fail "syntax"
hold_for_completion
cat >complete <<'END'
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
PATH=$TMP/bin:$PATH
_holdfast
printf '%s\n' "${COMPREPLY[@]}"
END
completes() # WORD ... : the words that would be offered for the last
{
    expect 0 bash complete "$completions/holdfast.bash" "$@"
}

completes holdfast ''
same "$(tr '\n' ' ' <out)" "run hold ls status break forget guard engines doctor bench verify help "
completes holdfast st
same "$(cat out)" status
completes holdfast run --on-lost ''
same "$(tr '\n' ' ' <out)" "term kill ignore "
completes holdfast -u ''
for scheme in file mem redis rediss redlock postgres mysql mariadb sqlite zookeeper etcd etcds consul consuls memcached; do
    printed "$scheme:"
done
completes holdfast status ''
same "$(head -n 1 out)" nightly
case_of "holdfast status 'two  w" "holdfast|status|two  words, it's"
case_of 'holdfast status "two  w' "holdfast|status|two  words, it's"
types bash "$completions/holdfast.bash"
hold_no_more

for command in run hold ls status break forget guard engines doctor bench verify; do
    "$HOLDFAST" $command --help | grep -o -- '^  .*  ' | grep -o -- '--[a-z-]*[a-z]' | sort -u >options
    [ -s options ] || fail "no options in the help of $command"
    while read -r option; do
        grep -q -- "$option" "$completions/holdfast.bash" || fail "bash does not know $option"
        grep -q -- "$option" "$completions/_holdfast" || fail "zsh does not know $option"
        grep -q -- "-l ${option#--}" "$completions/holdfast.fish" || fail "fish does not know $option"
    done <options
done
