/* SPDX-License-Identifier: MIT
 *
 * redlock.pml: the locks and fencing tokens of redlock://, for spin. model/run compiles and checks it in many variants;
 * model/README.md says what is and what is not in it.
 *
 * The rules that are checked, which the scripts on the masters and the client must follow to the letter:
 *
 *   master    owner   who has the lock here, or nobody
 *             t       the last token stored here; it never gets smaller
 *             kept    t was stored by the present owner since it took the lock here
 *
 *   ACQUIRE(me, guess)      held by another: busy.
 *                           p = max(t + 1, clock).
 *                           Free: owner = me, kept = 0, t = p - 1.   (If it was mine already: t and kept stay.)
 *                           kept and t == guess: answer guess.       (The same request once more.)
 *                           guess >= p: t = guess, kept = 1, answer guess.
 *                           Otherwise answer p, without storing it.
 *   WRITE BACK(me, T)       accepted if owner == me and (t < T, or t == T and kept). Then t = T, kept = 1.
 *   RELEASE(me)             frees if owner == me.
 *
 *   client    `me` is new for each attempt, not only for each client.
 *             Majority answered with the guess: held, token = guess. Otherwise, with a majority of any answers:
 *             T = the largest answer, and more than the guess; WRITE BACK; majority accepted: held, token = T.
 *             No majority: release everywhere, start over as somebody new.
 *
 * How little state is enough:
 *   - An attempt is a client of its own, as its name is its own. A client's attempts one after the other are a special
 *     case of attempts at any time.
 *   - A request may reach a master at any moment after it was sent, any number of times, or never: so nothing is kept
 *     of requests under way. A lost answer is one that is never noticed; a late one that is still noticed is the same
 *     as one in time, because the client acts as late as it likes. `busy` and a refusal tell a client nothing that it
 *     uses, so they are the same as no answer.
 *   - Time: a client leaves when its own deadline has passed, or before. From then on its locks may end on every
 *     master, by expiry or by a release that is late, and not before, unless a clock jumps.
 *   - A clock is any number at any moment: ahead, behind, standing still, jumping. Tokens are 1 to TOKENS.
 *
 * What to check, one of: EXCLUSION; ORDER (of tokens: no two grants have the same, and a grant has a larger one than
 *     all that were complete when its attempt began to store its own); GRANT_ORDER (larger than all that were complete
 *     before it itself was); REACHED (fails when every attempt was granted, to show that this can happen at all).
 * What goes wrong: JUMP_ONCE (on the first master a lock ends early, once), JUMP_ALWAYS (everywhere, at any time),
 *     RESTART (the first master forgets its lock and some or all of its t, any number of times; its clock is past all
 *     that it had stored), RESTART_ALL (every master), SLOW_CLOCK (a restarted master's clock may be behind).
 * RENEWALS: holders also renew.
 * Rules left out, to see that each is needed: NO_WRITE_BACK (masters store what they propose, the holder takes the
 *     largest), LAX_RETRY (t == T is accepted without `kept`), NO_FLOOR (t stays when a free lock is taken), LOW_GUESS
 *     (a guess need only be more than t), SAME_NAME (two attempts of a client under one name), EAGER_RENEWAL (one
 *     master's renewal moves the deadline).
 */
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef TOKENS
#define TOKENS 4
#endif
#ifndef GUESSES
#define GUESSES TOKENS /* the largest guess; 0: nobody guesses */
#endif
#define MASTERS 3

#if defined(ORDER) || defined(GRANT_ORDER)
#define TOKENS_CHECKED
#endif
#ifdef RESTART_ALL
#define RESTART
#endif

mtype = { idle, asking, writing, inside, gone };

typedef Master {
    byte owner; /* 0: nobody */
    byte t;
    bit kept;
#ifdef RESTART
    byte past /* the clock is past this number: the largest t so far */
#endif
};

typedef Attempt {
    mtype phase = idle;
    byte guess; /* 0: none */
    byte token; /* asking: the largest answer; later what is written back or held */
    byte got;   /* asking: the masters that granted, one bit each */
    byte yes;   /* asking: those of them that stored the guess; writing: those that accepted */
#ifdef RENEWALS
    byte until; /* inside: the masters where the lock lasts until the client's deadline */
    byte again  /* inside: the masters that have answered the renewal under way */
#endif
#ifdef TOKENS_CHECKED
    byte before /* the largest token of a grant that was complete when this attempt began to store its own */
#endif
};

Master master[MASTERS];
Attempt attempt[ATTEMPTS];

#ifdef JUMP_ONCE
bool jumped
#endif
#ifdef TOKENS_CHECKED
byte largest; /* token of a complete grant */
int used      /* tokens of complete grants, one bit each */
#endif
#ifdef REACHED
byte quick, slow /* grants in one round trip, and by write-back */
#endif

byte answer /* of the step that is being made; 0 between steps */

#ifdef SAME_NAME
/* The first two attempts are one client's, the second begun when the first was given up, under the same name. */
#define NAME(a) (a == 0 -> 2 : a + 1)
#define MAY_START(a) (a != 1 || attempt[0].phase == gone)
#else
#define NAME(a) (a + 1)
#define MAY_START(a) true
#endif
#define IN_ORDER(a) (a == 0 || attempt[(a + ATTEMPTS - 1) % ATTEMPTS].phase != idle) /* names are alike: saves states */

#define BIT(m) (1 << m)
#define MAJORITY(set) (set == 3 || set == 5 || set == 6 || set == 7)
#define IS_OWNER(a, m) (master[m].owner == NAME(a))

#ifdef RESTART
#define LEAST(m) ((master[m].past > master[m].t -> master[m].past : master[m].t) + 1)
#else
#define LEAST(m) (master[m].t + 1)
#endif

inline store(m, value)
{
    master[m].t = value;
#ifdef RESTART
    if
    :: value > master[m].past -> master[m].past = value
    :: else
    fi
#endif
}

inline free_lock(m)
{
    master[m].owner = 0;
    master[m].kept = 0
}

inline start(a, g)
{
    d_step {
        attempt[a].phase == idle && IN_ORDER(a) && MAY_START(a) && g <= GUESSES ->
        attempt[a].guess = g;
#ifdef TOKENS_CHECKED
        attempt[a].before = largest;
#endif
        attempt[a].phase = asking;
        printf("MSC: attempt %d starts, guess %d\n", a + 1, attempt[a].guess)
    }
}

/* p: what the master makes of t and its clock, whatever that shows. heard: the answer reaches the client in time. */
inline acquire_arrives(a, m, p, heard)
{
    d_step {
        attempt[a].phase != idle && (master[m].owner == 0 || IS_OWNER(a, m)) && p >= LEAST(m) &&
            (!heard || attempt[a].phase == asking) ->
        if
        :: master[m].owner == 0 ->
            master[m].owner = NAME(a);
#ifndef NO_FLOOR
            store(m, p - 1)
#endif
        :: else
        fi;
        if
        :: attempt[a].guess != 0 && attempt[a].guess == master[m].t && master[m].kept -> answer = attempt[a].guess
#ifdef LOW_GUESS
        :: attempt[a].guess > master[m].t ->
#else
        :: attempt[a].guess >= p ->
#endif
            store(m, attempt[a].guess);
            master[m].kept = 1;
            answer = attempt[a].guess
        :: else ->
            answer = p;
#ifdef NO_WRITE_BACK
            store(m, p)
#endif
        fi;
        if
        :: heard ->
            attempt[a].got = attempt[a].got | BIT(m);
            attempt[a].yes = attempt[a].yes | (answer == attempt[a].guess -> BIT(m) : 0);
            attempt[a].token = (answer > attempt[a].token -> answer : attempt[a].token);
            printf("MSC: master %d grants to attempt %d, answer %d arrives\n", m + 1, a + 1, answer)
        :: else -> printf("MSC: master %d grants to attempt %d, answer %d is lost\n", m + 1, a + 1, answer)
        fi;
        answer = 0
    }
}

/* The client has a majority. It may also wait for more, or give up. */
inline decide(a)
{
    d_step {
        attempt[a].phase == asking && MAJORITY(attempt[a].got) &&
            (attempt[a].token > attempt[a].guess || attempt[a].token < TOKENS || MAJORITY(attempt[a].yes)) ->
        attempt[a].got = 0;
        if
        :: MAJORITY(attempt[a].yes) ->
            attempt[a].token = attempt[a].guess;
#ifdef REACHED
            quick++;
#endif
            grant(a)
        :: else ->
            attempt[a].token = (attempt[a].token > attempt[a].guess -> attempt[a].token : attempt[a].guess + 1);
            attempt[a].yes = 0;
#ifdef NO_WRITE_BACK
            grant(a)
#else
#ifdef TOKENS_CHECKED
            attempt[a].before = largest;
#endif
            attempt[a].phase = writing;
            printf("MSC: attempt %d writes token %d back\n", a + 1, attempt[a].token)
#endif
        fi
    }
}

inline write_back_arrives(a, m, heard)
{
    d_step {
        attempt[a].token != 0 && attempt[a].phase != asking && IS_OWNER(a, m) &&
            (!heard || attempt[a].phase == writing) &&
#ifdef LAX_RETRY
            master[m].t <= attempt[a].token ->
#else
            (master[m].t < attempt[a].token || (master[m].t == attempt[a].token && master[m].kept)) ->
#endif
        store(m, attempt[a].token);
        master[m].kept = 1;
        if
        :: heard ->
            attempt[a].yes = attempt[a].yes | BIT(m);
            printf("MSC: master %d accepts token %d of attempt %d\n", m + 1, attempt[a].token, a + 1)
        :: else ->
            printf("MSC: master %d accepts token %d of attempt %d, answer lost\n", m + 1, attempt[a].token, a + 1)
        fi
    }
}

inline finish(a)
{
    d_step {
        attempt[a].phase == writing && MAJORITY(attempt[a].yes) ->
#ifdef REACHED
        slow++;
#endif
        grant(a)
    }
}

inline grant(a)
{
    printf("MSC: attempt %d IS INSIDE with token %d\n", a + 1, attempt[a].token);
    attempt[a].yes = 0;
    attempt[a].phase = inside;
#ifdef RENEWALS
    attempt[a].until = 7;
#endif
#ifdef EXCLUSION
    assert((attempt[0].phase == inside) + (attempt[1].phase == inside) +
           (attempt[ATTEMPTS - 1].phase == inside && ATTEMPTS > 2) <= 1);
#endif
#ifdef TOKENS_CHECKED
    assert((used & (1 << attempt[a].token)) == 0);
#ifdef GRANT_ORDER
    assert(attempt[a].token > largest);
#else
    assert(attempt[a].token > attempt[a].before);
#endif
    used = used | (1 << attempt[a].token);
    largest = (attempt[a].token > largest -> attempt[a].token : largest);
    attempt[a].before = 0
#endif
#ifdef REACHED
    assert(!(quick + slow == ATTEMPTS && slow >= 1 && (quick >= 1 || GUESSES == 0)))
#endif
}

#ifdef RENEWALS
/* A renewal is sent to all masters. A majority that still has the lock moves the deadline; elsewhere the lock ends
 * when it would have ended without. */
inline renewal_arrives(a, m)
{
    d_step {
        attempt[a].phase == inside && IS_OWNER(a, m) ->
        attempt[a].again = attempt[a].again | BIT(m);
        printf("MSC: master %d renews the lock of attempt %d\n", m + 1, a + 1)
    }
}

inline renewed(a)
{
    d_step {
        attempt[a].phase == inside &&
#ifdef EAGER_RENEWAL
            attempt[a].again != 0 ->
#else
            MAJORITY(attempt[a].again) ->
#endif
        attempt[a].until = attempt[a].again;
        attempt[a].again = 0;
        printf("MSC: attempt %d has a new deadline\n", a + 1)
    }
}
#define LASTS(a, m) ((attempt[a].until | attempt[a].again) & BIT(m))
#else
#define LASTS(a, m) true
#endif

/* Released, given up, or the client's own deadline has passed. Nobody knows yet but the client. */
inline leave(a)
{
    d_step {
        attempt[a].phase == asking || attempt[a].phase == writing || attempt[a].phase == inside ->
        if
        :: attempt[a].phase == asking -> attempt[a].token = 0
        :: else
        fi;
        attempt[a].got = 0;
        attempt[a].yes = 0;
#ifdef RENEWALS
        attempt[a].until = 0;
        attempt[a].again = 0;
#endif
#ifdef TOKENS_CHECKED
        attempt[a].before = 0;
#endif
        attempt[a].phase = gone;
        printf("MSC: attempt %d leaves or gives up\n", a + 1)
    }
}

inline lock_ends(a, m)
{
    d_step {
        IS_OWNER(a, m) && (attempt[a].phase == gone || (attempt[a].phase == inside && !LASTS(a, m))) ->
        free_lock(m);
        printf("MSC: master %d: the lock of attempt %d is released or expires\n", m + 1, a + 1)
    }
}

inline ends_early(m)
{
    d_step {
#ifdef JUMP_ONCE
        !jumped && master[m].owner != 0 ->
        jumped = true;
#else
        master[m].owner != 0 ->
#endif
        printf("MSC: master %d: its clock jumps, the lock of attempt %d ends early\n", m + 1, master[m].owner);
        free_lock(m)
    }
}

inline restart(m, remembered)
{
    d_step {
        remembered <= master[m].t ->
        free_lock(m);
        master[m].t = remembered;
#ifdef SLOW_CLOCK
        master[m].past = 0;
#endif
        printf("MSC: master %d restarts and remembers %d\n", m + 1, master[m].t)
    }
}

#define AT_ANY_CLOCK(a, m, heard)                                                                                      \
    :: acquire_arrives(a, m, 1, heard)                                                                                 \
    :: acquire_arrives(a, m, 2, heard)                                                                                 \
    :: acquire_arrives(a, m, 3, heard) FOURTH(acquire_arrives(a, m, 4, heard)) FIFTH(acquire_arrives(a, m, 5, heard))
#define MESSAGES(a, m)                                                                                                 \
    AT_ANY_CLOCK(a, m, true)                                                                                           \
    AT_ANY_CLOCK(a, m, false)                                                                                          \
    :: write_back_arrives(a, m, true)                                                                                  \
    :: write_back_arrives(a, m, false)                                                                                 \
    :: lock_ends(a, m) RENEWAL(renewal_arrives(a, m))
#define STEPS(a)                                                                                                       \
    :: start(a, 0)                                                                                                     \
    :: start(a, 1)                                                                                                     \
    :: start(a, 2)                                                                                                     \
    :: start(a, 3) FOURTH(start(a, 4)) FIFTH(start(a, 5))                                                              \
    :: decide(a)                                                                                                       \
    :: finish(a)                                                                                                       \
    :: leave(a) RENEWAL(renewed(a)) MESSAGES(a, 0) MESSAGES(a, 1) MESSAGES(a, 2)
#define RESTARTS(m)                                                                                                    \
    :: restart(m, 0)                                                                                                   \
    :: restart(m, 1)                                                                                                   \
    :: restart(m, 2)                                                                                                   \
    :: restart(m, 3) FOURTH(restart(m, 4)) FIFTH(restart(m, 5))

#if TOKENS > 3
#define FOURTH(step) :: step
#else
#define FOURTH(step)
#endif
#if TOKENS > 4
#define FIFTH(step) :: step
#else
#define FIFTH(step)
#endif
#ifdef RENEWALS
#define RENEWAL(step) :: step
#else
#define RENEWAL(step)
#endif

active proctype world()
{
    do
    STEPS(0)
    STEPS(1)
#if ATTEMPTS > 2
    STEPS(2)
#endif
#if defined(JUMP_ONCE) || defined(JUMP_ALWAYS)
    :: ends_early(0)
#endif
#ifdef JUMP_ALWAYS
    :: ends_early(1)
    :: ends_early(2)
#endif
#ifdef RESTART
    RESTARTS(0)
#endif
#ifdef RESTART_ALL
    RESTARTS(1)
    RESTARTS(2)
#endif
    od
}
