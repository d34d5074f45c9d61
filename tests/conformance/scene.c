/* SPDX-License-Identifier: MIT
 *
 * scene.c: see scene.h.
 */
#include "scene.h"

void scene_begin(struct scene *scene, const char *name, uint32_t ttl_ms)
{
    hf_options options = with_ttl(ttl_ms);
    *scene = (struct scene){ .name = name, .client = open_client(), .other = open_client() };
    record_loss(&options, &scene->loss);
    scene->lock = must_acquire(scene->client, name, &options);
    scene->token = hf_token(scene->lock);
    waiter_start(&scene->waiter, scene->other, name, NULL);
    await_waiters(scene->client, name, 1);
}

void release_in_trouble(hf_lock *lock)
{
    hf_error err = { 0 };
    const hf_status status = hf_release(lock, &err);
    if (status != HF_UNAVAILABLE && status != HF_UNKNOWN)
        CHECK_STATUS(HF_OK, status, &err);
}

static void give_back(const struct scene *scene, hf_lock *lock)
{
    if (scene->in_trouble)
        release_in_trouble(lock);
    else
        must_release(lock);
}

void scene_check_kept(struct scene *scene)
{
    CHECK(hf_remaining_ms(scene->lock) > 0);
    CHECK_INT(0, gate_count(&scene->waiter.ended));
    give_back(scene, scene->lock);
    CHECK_INT(0, gate_count(&scene->loss.told));
}

void scene_check_lost(struct scene *scene)
{
    gate_await(&scene->loss.told, 1);
    await_lost_fd(scene->lock);
    CHECK(hf_remaining_ms(scene->lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(scene->lock, NULL), NULL);
}

void scene_end(struct scene *scene)
{
    waiter_join(&scene->waiter, HF_OK);
    CHECK(scene->waiter.token > scene->token);
    give_back(scene, scene->waiter.lock);
    check_becomes_free(scene->client, scene->name);
    hf_close(scene->client);
    hf_close(scene->other);
}
