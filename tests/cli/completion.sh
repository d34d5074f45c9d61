# SPDX-License-Identifier: MIT
# The completion for bash parses and completes; all three know every option of `run`.
. "$HERE/lib.sh"
completions=$HERE/../../completions

bash -n "$completions/holdfast.bash" || fail "syntax"
mkdir bin
ln -s "$HOLDFAST" bin/holdfast
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
same "$(tr '\n' ' ' <out)" "run ls status break engines bench "
completes holdfast st
same "$(cat out)" status
completes holdfast run --on-lost ''
same "$(tr '\n' ' ' <out)" "term kill ignore "
completes holdfast -u ''
for scheme in file mem redis rediss redlock postgres mysql mariadb sqlite zookeeper etcd etcds consul consuls; do
    printed "$scheme:"
done
"$HOLDFAST" run nightly -- sh -c 'touch ready; until [ -e done ]; do sleep 0.02; done' &
until_true '[ -e ready ]'
for command in run ls status break; do
    completes holdfast $command ni
    same "$(cat out)" nightly "$command"
done
touch done
wait
"$HOLDFAST" run --help | grep -o -- '--[a-z-]*[a-z]' | sort -u >options
while read -r option; do
    grep -q -- "$option" "$completions/holdfast.bash" || fail "bash does not know $option"
    grep -q -- "$option" "$completions/_holdfast" || fail "zsh does not know $option"
    grep -q -- "-l ${option#--}" "$completions/holdfast.fish" || fail "fish does not know $option"
done <options
