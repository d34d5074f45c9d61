/* SPDX-License-Identifier: MIT
 *
 * handoff.pml: the native locks of redis:, with requests that are given up and arrive all the same, for spin. model/run
 * compiles and checks it in many variants; model/README.md says what is and what is not in it.
 *
 * The rules that are checked, which the scripts on the server and the client must follow to the letter:
 *
 *   server    owner   who has the lock, or nobody; a hold is an owner of its own
 *             number  of the last renewal of the present owner; 0: none yet, or none that carried a number
 *             queue   who waits, in the order of arrival
 *             marks   holds that nothing is granted to any more
 *
 *   ATTEMPT(me)             marked: nothing. Free: owner = me. Mine: its time begins anew, unless number > 0. Else:
 *                           lines up, unless it stands there already.
 *   RENEW(me, time, N)      only if owner == me and N >= number: its time is the new one, number = N.
 *   RELEASE(me, mark)       leaves the queue; if owner == me, the first of the queue is the owner, and told so. With
 *                           mark: marked.
 *
 *   client    Counts the attempts and renewals of a hold that it gave up; N is that count. Asks again under the same
 *             owner as often as it likes. The release is the last that is sent for a hold, is sent again until it is
 *             answered, and has the mark if an attempt was given up.
 *
 * How little state is enough:
 *   - Of each kind one request is waited for, and one that was given up is still on its way. It arrives at any later
 *     moment, or never. A release may arrive any number of times once it was sent.
 *   - Time: short or long. The client leaves at its own deadline at the latest. A lock ends on the server when its
 *     client has left; and also before, if the server counts a short time where the client counts on a long one.
 *   - A gift whose time was over is not believed: that is the client's reckoning, which is not in here.
 *
 * What to check, one of: EXCLUSION; GHOST (what was released and answered stays given back: it neither holds the lock
 *     nor stands in the queue); REACHED (fails when every hold was granted and something was late, to show that this
 *     can happen at all).
 * REPLICAS: a grant may be found not to be good enough, because too few replicas confirm it.
 * Rules left out, to see that each is needed: NO_MARK; NO_NUMBER (the server does not compare that of a renewal);
 *     NUMBER_FOR_RENEWALS (attempts do not look at it); INNER_RELEASE (a grant that is not good enough is released, and
 *     asked for again under the same owner).
 */
#ifndef HOLDS
#define HOLDS 2
#endif
#ifndef RENEWALS
#define RENEWALS 2 /* of one hold, at most */
#endif
#define ATTEMPTS 2 /* likewise: one that is late, and its successor */

#define SHORT 1
#define LONG 2

mtype = { idle, asking, waiting, inside, leaving, gone };

typedef Hold {
    mtype phase = idle;
    bit asked;      /* an attempt that is waited for is on its way */
    bit stray;      /* one that was given up is on its way */
    bit astray;     /* one was given up */
    byte number;    /* of requests that were given up */
    byte attempts;  /* so far */
    bit released;   /* a release was sent */
    bit told;       /* it was given the lock, and the message is there to be read */
    byte believes;  /* inside: which time the client counts on */
    byte renewal;   /* the time that a renewal on its way asks for; 0: none */
    byte old, old_number; /* the same of one that was given up, and its number */
    byte renewals   /* so far */
};

Hold hold[HOLDS];
byte owner; /* 0: nobody; else the hold + 1 */
byte until; /* SHORT or LONG, of the owner */
byte number;
byte queue[HOLDS], waiting_count;
byte marks;
#ifdef REACHED
byte grants;
bool was_late
#endif

byte i /* of the step that is being made; 0 between steps */

#define BIT(h) (1 << h)
#define IS_OWNER(h) (owner == h + 1)
#define MARKED(h) (marks & BIT(h))
#define QUEUED(h) (queue[0] == h + 1 || queue[1 % HOLDS] == h + 1 || queue[2 % HOLDS] == h + 1)

/* The first of the queue goes. */
inline shift()
{
    i = 1;
    do
    :: i < HOLDS ->
        queue[i - 1] = queue[i];
        i++
    :: else -> break
    od;
    queue[HOLDS - 1] = 0;
    waiting_count--;
    i = 0
}

inline dequeue(h)
{
    i = 0;
    do
    :: i < HOLDS && queue[i] == h + 1 ->
        do
        :: i + 1 < HOLDS ->
            queue[i] = queue[i + 1];
            i++
        :: else -> break
        od;
        queue[HOLDS - 1] = 0;
        waiting_count--;
        break
    :: i < HOLDS && queue[i] != h + 1 -> i++
    :: else -> break
    od;
    i = 0
}

inline hand_over()
{
    number = 0;
    until = SHORT;
    owner = queue[0];
    if
    :: owner != 0 ->
        hold[owner - 1].told = 1;
        printf("MSC: the server hands it to hold %d\n", owner);
        shift()
    :: else
    fi
}

inline enter(h)
{
    hold[h].phase = inside;
    hold[h].told = 0;
    hold[h].believes = SHORT;
    printf("MSC: hold %d IS INSIDE\n", h + 1);
#ifdef EXCLUSION
    assert((hold[0].phase == inside) + (hold[1].phase == inside) +
           (hold[HOLDS - 1].phase == inside && HOLDS > 2) <= 1);
#endif
#ifdef REACHED
    grants = grants | BIT(h);
    assert(!(grants == (1 << HOLDS) - 1 && was_late))
#endif
}

inline ask(h)
{
    d_step {
        (hold[h].phase == idle || hold[h].phase == waiting || (hold[h].phase == asking && !hold[h].asked)) &&
            hold[h].attempts < ATTEMPTS ->
        if
        :: hold[h].phase == asking -> /* its answer was lost */
            hold[h].astray = 1;
            hold[h].number++
        :: else
        fi;
        hold[h].phase = asking;
        hold[h].asked = 1;
        hold[h].attempts++;
        printf("MSC: hold %d asks\n", h + 1)
    }
}

/* It goes on to ask again, or leaves. */
inline give_up_attempt(h)
{
    d_step {
        hold[h].phase == asking && hold[h].asked && !hold[h].stray ->
        hold[h].asked = 0;
        hold[h].stray = 1;
        printf("MSC: hold %d does not wait for the answer any longer\n", h + 1)
    }
}

inline serve_attempt(h)
{
    if
    :: MARKED(h)
    :: !MARKED(h) && owner == 0 ->
        owner = h + 1;
        until = SHORT
    :: !MARKED(h) && IS_OWNER(h) ->
#ifdef NUMBER_FOR_RENEWALS
        until = SHORT
#else
        until = (number > 0 -> until : SHORT)
#endif
    :: !MARKED(h) && owner != 0 && !IS_OWNER(h) && !QUEUED(h) ->
        queue[waiting_count] = h + 1;
        waiting_count++
    :: !MARKED(h) && owner != 0 && !IS_OWNER(h) && QUEUED(h)
    fi
#ifdef GHOST
    ;
    assert(!(hold[h].phase == gone && (IS_OWNER(h) || QUEUED(h))))
#endif
}

inline attempt_arrives(h, heard)
{
    d_step {
        hold[h].asked ->
        hold[h].asked = 0;
        printf("MSC: the attempt of hold %d arrives, owner is %d\n", h + 1, owner);
        serve_attempt(h);
        if
        :: heard && IS_OWNER(h) -> enter(h)
        :: heard && !IS_OWNER(h) -> hold[h].phase = waiting
        :: !heard
        fi
    }
}

#ifdef REPLICAS
/* Granted, and then too few replicas confirm it. */
inline attempt_is_not_confirmed(h)
{
    d_step {
        hold[h].asked && (owner == 0 || IS_OWNER(h)) && !MARKED(h) ->
        hold[h].asked = 0;
        serve_attempt(h);
        hold[h].phase = waiting;
#ifdef INNER_RELEASE
        hold[h].released = 1;
#endif
        printf("MSC: hold %d is granted it, but too few replicas have it\n", h + 1)
    }
}
#endif

inline stray_arrives(h)
{
    d_step {
        hold[h].stray ->
        hold[h].stray = 0;
        printf("MSC: an attempt of hold %d arrives LATE, owner is %d\n", h + 1, owner);
#ifdef REACHED
        was_late = was_late || hold[h].phase == gone;
#endif
        serve_attempt(h)
    }
}

inline read_gift(h)
{
    d_step {
        hold[h].told && IS_OWNER(h) && hold[h].phase == waiting ->
        printf("MSC: hold %d hears that it was given the lock\n", h + 1);
        enter(h)
    }
}

/* --- renewals --- */

inline renew(h, time)
{
    d_step {
        hold[h].phase == inside && hold[h].renewal == 0 && hold[h].renewals < RENEWALS ->
        hold[h].renewal = time;
        hold[h].renewals++;
        printf("MSC: hold %d asks for a renewal to %d (1 short, 2 long)\n", h + 1, time)
    }
}

/* for: the time that it asks for; carried: its number. */
#define SERVE_RENEWAL(h, for, carried)                                                                                 \
    if                                                                                                                 \
    :: IS_OWNER(h) && COMPARES(carried) ->                                                                             \
        until = for;                                                                                                   \
        number = carried                                                                                               \
    :: else                                                                                                            \
    fi
#ifdef NO_NUMBER
#define COMPARES(carried) true
#else
#define COMPARES(carried) (carried >= number)
#endif

inline renewal_arrives(h)
{
    d_step {
        hold[h].renewal != 0 && hold[h].phase == inside && IS_OWNER(h) ->
        SERVE_RENEWAL(h, hold[h].renewal, hold[h].number);
        hold[h].believes = hold[h].renewal;
        hold[h].renewal = 0;
        printf("MSC: hold %d is renewed\n", h + 1)
    }
}

/* lost: it arrived, but its answer does not. The client counts on the shorter time from now on. */
inline give_up_renewal(h, lost)
{
    d_step {
        hold[h].renewal != 0 && (lost || hold[h].old == 0) ->
        if
        :: lost -> SERVE_RENEWAL(h, hold[h].renewal, hold[h].number)
        :: else ->
            hold[h].old = hold[h].renewal;
            hold[h].old_number = hold[h].number
        fi;
        hold[h].believes = (hold[h].renewal < hold[h].believes -> hold[h].renewal : hold[h].believes);
        hold[h].renewal = 0;
        hold[h].number++;
        printf("MSC: hold %d does not wait for the answer to its renewal\n", h + 1)
    }
}

inline old_renewal_arrives(h)
{
    d_step {
        hold[h].old != 0 ->
        printf("MSC: a renewal of hold %d to %d arrives LATE\n", h + 1, hold[h].old);
        SERVE_RENEWAL(h, hold[h].old, hold[h].old_number);
        hold[h].old = 0;
        hold[h].old_number = 0
    }
}

/* --- giving back --- */

/* Released, lost at its own deadline, or given up. */
inline leave(h)
{
    d_step {
        hold[h].phase == inside || hold[h].phase == waiting || (hold[h].phase == asking && !hold[h].asked) ->
        hold[h].astray = hold[h].astray || hold[h].phase == asking;
        if
        :: hold[h].renewal != 0 && hold[h].old == 0 -> /* still on its way */
            hold[h].old = hold[h].renewal;
            hold[h].old_number = hold[h].number
        :: else
        fi;
        hold[h].renewal = 0;
        hold[h].believes = 0;
        hold[h].told = 0;
        hold[h].phase = leaving;
        hold[h].released = 1;
        printf("MSC: hold %d leaves\n", h + 1)
    }
}

inline release_arrives(h, heard)
{
    d_step {
        hold[h].released && (!heard || hold[h].phase == leaving) ->
        dequeue(h);
#ifndef NO_MARK
        marks = marks | (hold[h].astray && hold[h].phase == leaving -> BIT(h) : 0);
#endif
        printf("MSC: a release of hold %d arrives\n", h + 1);
        if
        :: IS_OWNER(h) -> hand_over()
        :: else
        fi;
        if
        :: heard -> hold[h].phase = gone
        :: else
        fi
    }
}

/* The time of whoever has it is over by the server's clock. */
inline ends(h)
{
    d_step {
        IS_OWNER(h) && (hold[h].phase != inside || (until == SHORT && hold[h].believes == LONG)) ->
        hold[h].told = 0;
        printf("MSC: the lock of hold %d ends on the server\n", h + 1);
        hand_over()
    }
}

#ifdef REPLICAS
#define NOT_CONFIRMED(h) :: attempt_is_not_confirmed(h)
#else
#define NOT_CONFIRMED(h)
#endif

#define STEPS(h)                                                                                                       \
    :: ask(h)                                                                                                          \
    :: give_up_attempt(h)                                                                                              \
    :: attempt_arrives(h, true)                                                                                        \
    :: attempt_arrives(h, false)                                                                                       \
    :: stray_arrives(h) NOT_CONFIRMED(h)                                                                               \
    :: read_gift(h)                                                                                                    \
    :: renew(h, SHORT)                                                                                                 \
    :: renew(h, LONG)                                                                                                  \
    :: renewal_arrives(h)                                                                                              \
    :: give_up_renewal(h, true)                                                                                        \
    :: give_up_renewal(h, false)                                                                                       \
    :: old_renewal_arrives(h)                                                                                          \
    :: leave(h)                                                                                                        \
    :: release_arrives(h, true)                                                                                        \
    :: release_arrives(h, false)                                                                                       \
    :: ends(h)

active proctype world()
{
    do
    STEPS(0)
    STEPS(1)
#if HOLDS > 2
    STEPS(2)
#endif
    od
}
