# SPDX-License-Identifier: MIT
# fish completion for holdfast(1)

# Where the cursor is: "command" (holdfast's), "name", "rest" (what stands behind NAME of run), "value" or "other"; then
# the URL of -u, the command, and the words behind NAME, a line each.
function __holdfast_place
    set -l words (commandline -opc)
    set -l valued -w -t -E -c --wait --timeout --ttl --conflict-exit-code --command --max-hold --on-lost --grace \
        --once-per --hold-at-least --note --log --on-lost-exec --reach --mode --workers --seconds
    set -l url ''
    set -l command ''
    set -l name ''
    set -l i 2
    while test $i -le (count $words)
        set -l word $words[$i]
        if contains -- $word -u --url; and test "$command" != engines
            set i (math $i + 1)
            set url $words[$i]
        else if contains -- $word $valued
            set i (math $i + 1)
        else if string match -q -- '-*' $word
        else if test -z "$command"
            set command $word
        else
            set name $word
            set i (math $i + 1)
            break
        end
        set i (math $i + 1)
    end
    set -l place other
    if test $i -gt (math (count $words) + 1)
        set place value # of an option
    else if test -z "$command"
        set place command
    else if test -z "$name"
        set place name
    else if test "$command" = run
        set place rest
    end
    printf '%s\n' $place "$url" "$command"
    if test $i -le (count $words)
        printf '%s\n' $words[$i..-1]
    end
end

function __holdfast_at -a place
    set -l found (__holdfast_place)
    test "$found[1]" = $place; or return 1
    test (count $argv) -eq 1; or contains -- "$found[3]" $argv[2..-1]
end

# An option of one of these commands, or, without any, of all.
function __holdfast_option
    set -l found (__holdfast_place)
    test "$found[1]" != rest; or return 1
    test (count $argv) -eq 0; or contains -- "$found[3]" $argv
end

# The names of held locks, or of those whose work is done. Asked only of a store on this machine: completion must not
# hang on a network.
function __holdfast_names
    set -l option
    set -l which
    set -l found (__holdfast_place)
    test -z "$found[2]"; or set option -u $found[2]
    test "$found[3]" != forget; or set which --done
    holdfast $option engines --url 2>/dev/null | string match -qr '^url +file:'; or return
    holdfast $option ls $which --names 2>/dev/null
end

function __holdfast_schemes
    holdfast engines 2>/dev/null | string replace -rf '^[a-z]+ \(([^)]*)\): .*' '$1' | string split ' '
end

# What follows NAME is a command with a completion of its own.
function __holdfast_command
    set -l words (__holdfast_place)[4..-1]
    test "$words[1]" = --; and set -e words[1]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c holdfast -f
complete -c holdfast -n __holdfast_option -s u -l url -x -a '(__holdfast_schemes)' -d 'Where the lock is kept'
complete -c holdfast -n __holdfast_option -l reach -x -a 'processes machines' -d 'Whom the store must exclude'
complete -c holdfast -n __holdfast_option -l help -d 'Print help'
complete -c holdfast -n '__holdfast_at command' -s V -l version -d 'Print the version'
for at in '__holdfast_at command' '__holdfast_at name help'
    complete -c holdfast -n $at -a run -d 'Run a command while holding a lock'
    complete -c holdfast -n $at -a hold -d 'Hold a lock until standard input ends'
    complete -c holdfast -n $at -a ls -d 'List the locks that are held'
    complete -c holdfast -n $at -a status -d 'Show one lock'
    complete -c holdfast -n $at -a break -d 'Take a lock away from its holder'
    complete -c holdfast -n $at -a forget -d 'Forget that it is done'
    complete -c holdfast -n $at -a guard -d 'Show a fencing token'
    complete -c holdfast -n $at -a engines -d 'List what can keep locks'
    complete -c holdfast -n $at -a doctor -d 'Look for what could lose a lock'
    complete -c holdfast -n $at -a bench -d 'Measure a store'
    complete -c holdfast -n $at -a verify -d 'Try on a store what is promised'
    complete -c holdfast -n $at -a help -d 'Print help'
end

set -l lock '__holdfast_option run hold'
complete -c holdfast -n $lock -s n -l nonblock -d 'Do not wait'
complete -c holdfast -n $lock -s w -l wait -x -d 'Wait no longer than this'
complete -c holdfast -n $lock -l timeout -x -d 'Wait no longer than this'
complete -c holdfast -n $lock -s t -l ttl -x -d 'Time-to-live of the lock'
complete -c holdfast -n $lock -s E -l conflict-exit-code -x -d 'Exit code if not acquired'
complete -c holdfast -n $lock -s q -l quiet -d 'Say nothing but errors'
complete -c holdfast -n $lock -l no-renew -d 'End the lock after its time-to-live'
complete -c holdfast -n $lock -l max-hold -x -d 'End the lock after this long'
complete -c holdfast -n $lock -l note -x -d 'Shown by ls'
complete -c holdfast -n $lock -l verbose -d 'Say who is waited for'
complete -c holdfast -n $lock -l log -r -F -d 'Write there what becomes of the lock'
complete -c holdfast -n $lock -l on-lost-exec -x -d 'Run by sh -c after a loss'
complete -c holdfast -n '__holdfast_option run' -s c -l command -x -d 'Run this by sh -c'
complete -c holdfast -n '__holdfast_option run' -l on-lost -x -a 'term kill ignore' -d 'What to do with the command'
complete -c holdfast -n '__holdfast_option run' -l grace -x -d 'Time between SIGTERM and SIGKILL'
complete -c holdfast -n '__holdfast_option run' -l once-per -x -d 'Not if it was done in this time'
complete -c holdfast -n '__holdfast_option run' -l even-if-failed -d 'Done is also what fails'
complete -c holdfast -n '__holdfast_option run' -l hold-at-least -x -d 'Keep the lock for so long'
complete -c holdfast -n '__holdfast_at name run hold ls status break forget' -a '(__holdfast_names)' -d Lock
complete -c holdfast -n '__holdfast_at rest' -a '(__holdfast_command)'

complete -c holdfast -n '__holdfast_option status' -s q -l quiet -d 'Print nothing'
complete -c holdfast -n '__holdfast_option ls' -l done -d 'List what was done'
complete -c holdfast -n '__holdfast_option ls' -l names -d 'Print the names alone'
complete -c holdfast -n '__holdfast_option ls status engines doctor bench verify' -l json -d 'Print JSON'
complete -c holdfast -n '__holdfast_option doctor' -s t -l ttl -x -d 'Time-to-live of the locks'
complete -c holdfast -n '__holdfast_option doctor' -l read-only -d 'Take no lock'
complete -c holdfast -n '__holdfast_at name doctor' -a '(__holdfast_schemes)' -d URL
complete -c holdfast -n '__holdfast_option bench' -l mode -x -a 'pair throughput contend handoff' -d 'What to measure'
complete -c holdfast -n '__holdfast_option bench verify' -l workers -x -d 'How many at once'
complete -c holdfast -n '__holdfast_option bench' -l procs -d 'Processes instead of threads'
complete -c holdfast -n '__holdfast_option bench verify' -l seconds -x -d 'How long'
complete -c holdfast -n '__holdfast_option verify' -l ttl -x -d 'Time-to-live of their locks'
complete -c holdfast -n '__holdfast_option verify' -l pause -d 'Stop workers for a while'
complete -c holdfast -n '__holdfast_option verify' -l kill -d 'Kill workers'
complete -c holdfast -n '__holdfast_option verify' -l during -x -d 'Run this by sh -c meanwhile'
complete -c holdfast -n '__holdfast_option verify' -l prefix -x -d 'Of the names of the locks'
complete -c holdfast -n '__holdfast_option verify' -l html -r -F -d 'Write a page'
