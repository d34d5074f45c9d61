# SPDX-License-Identifier: MIT
# bash completion for holdfast(1)

# The names of held locks, one per line. Asked only of a store on this machine: completion must not hang on a network.
_holdfast_names()
{
    local url=${1:-${HOLDFAST_URL:-file:}}
    case $url in
    file:*) holdfast -u "$url" ls 2>/dev/null | awk 'NR > 1 { print $1 }' ;;
    esac
}

_holdfast_schemes()
{
    holdfast engines 2>/dev/null | sed -n 's/^[a-z]* (\([^)]*\)): .*/\1/p'
}

_holdfast()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command= url= name= word i
    COMPREPLY=()

    # A ':' parts words, so a URL may be several of them: "-u" "file" ":" "///dir".
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ -z $command ]]; then
            case $word in
            -u | --url)
                url=${COMP_WORDS[i + 1]}
                ((i++))
                while ((i + 2 < COMP_CWORD)) && [[ ${COMP_WORDS[i + 1]} == : ]]; do
                    url+=:${COMP_WORDS[i + 2]}
                    ((i += 2))
                done
                ;;
            run | ls | status | break | engines | bench) command=$word ;;
            esac
        else
            case $word in
            -w | -t | -E | --wait | --ttl | --conflict-exit-code | --max-hold | --on-lost | --grace | --note | \
                --mode | --workers | --seconds) ((i++)) ;;
            --) ;;
            -*) ;;
            *)
                if [[ $command == run && -n $name ]]; then
                    # What follows NAME is a command with a completion of its own.
                    if declare -F _command_offset >/dev/null; then
                        _command_offset "$i"
                    else
                        COMPREPLY=($(compgen -c -- "$current"))
                    fi
                    return
                fi
                name=$word
                ;;
            esac
        fi
    done

    case $previous in
    -u | --url)
        COMPREPLY=($(compgen -W "$(_holdfast_schemes)" -- "$current"))
        return
        ;;
    --on-lost)
        COMPREPLY=($(compgen -W 'term kill ignore' -- "$current"))
        return
        ;;
    --mode)
        COMPREPLY=($(compgen -W 'pair throughput contend handoff' -- "$current"))
        return
        ;;
    -w | --wait | -t | --ttl | --max-hold | --grace)
        COMPREPLY=($(compgen -W '500ms 2s 30s 5m 1h' -- "$current"))
        return
        ;;
    -E | --conflict-exit-code | --note | --workers | --seconds) return ;;
    esac

    case $command in
    '')
        if [[ $current == -* ]]; then
            COMPREPLY=($(compgen -W '-u --url --json --help --version' -- "$current"))
        else
            COMPREPLY=($(compgen -W 'run ls status break engines bench' -- "$current"))
        fi
        ;;
    run)
        if [[ -n $name ]]; then
            COMPREPLY=($(compgen -c -- "$current"))
        elif [[ $current == -* ]]; then
            COMPREPLY=($(compgen -W '-n --nonblock -w --wait -t --ttl -E --conflict-exit-code --no-renew --max-hold
                --on-lost --grace --note --help' -- "$current"))
        else
            COMPREPLY=($(compgen -W "$(_holdfast_names "$url")" -- "$current"))
        fi
        ;;
    ls | status | break)
        if [[ $current == -* ]]; then
            word='--help'
            [[ $command == break ]] || word+=' --json'
            COMPREPLY=($(compgen -W "$word" -- "$current"))
        elif [[ -z $name ]]; then
            COMPREPLY=($(compgen -W "$(_holdfast_names "$url")" -- "$current"))
        fi
        ;;
    engines) COMPREPLY=($(compgen -W '--json --help' -- "$current")) ;;
    bench) COMPREPLY=($(compgen -W '--mode --workers --procs --seconds --json --help' -- "$current")) ;;
    esac
}

complete -F _holdfast holdfast
