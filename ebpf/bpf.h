/* The kernel's BPF interface as far as the programs use it: the user API header from linux-libc-dev, which C compilers depend on, and
 * the helpers by their fixed numbers (linux/bpf.h, enum bpf_func_id). */
#ifndef HORNWORK_BPF_H
#define HORNWORK_BPF_H

#include <linux/bpf.h>
#include <linux/types.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* Reads a context field with a separate load: the verifier allows only fixed offsets, and compilers would merge loads. */
#define READ(field) (*(volatile __typeof__(field) *)&(field))

/* Map definitions in BTF: a number is a pointer to an array of that size, a type is a pointer to it. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) type *name

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*clock_monotonic)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*clock_jiffies)(void) = (void *)BPF_FUNC_jiffies64;
static long (*assign_socket)(void *context, void *socket, __u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*release_socket)(void *socket) = (void *)BPF_FUNC_sk_release;

static long (*redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

/* The kernel checks this to decide which helpers a program may call. */
#define LICENCE char LICENSE[] SECTION("license") = "GPL"

#endif
