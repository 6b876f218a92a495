/* What our programs need of the kernel's interface for BPF: the user API header, which every C compiler's package brings along
 * (linux-libc-dev), and the few helpers that we call, by their fixed numbers (linux/bpf.h, enum bpf_func_id). */
#ifndef HORNWORK_BPF_H
#define HORNWORK_BPF_H

#include <linux/bpf.h>
#include <linux/types.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* Reads a field of a context on its own: the kernel allows only fixed offsets, which compilers like to merge. */
#define READ(field) (*(volatile __typeof__(field) *)&(field))

/* Descriptions of maps are read from BTF: a pointer to an array of as many elements as the number, and a pointer to the type. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) type *name

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*clock_monotonic)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*clock_jiffies)(void) = (void *)BPF_FUNC_jiffies64;
static long (*assign_socket)(void *context, void *socket, __u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*release_socket)(void *socket) = (void *)BPF_FUNC_sk_release;

static long (*redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

/* The kernel looks at this where it decides which helpers a program may call. */
#define LICENCE char LICENSE[] SECTION("license") = "GPL"

#endif
