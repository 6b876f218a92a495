/* Checksums of IP and UDP (RFC 1071) in a frame. */
#ifndef HORNWORK_SUM_H
#define HORNWORK_SUM_H

#include "bpf.h"
#include <linux/udp.h>

#define UDP 17
/* Largest IP packet whose checksum is verified, bytes. */
#define LARGEST 1500

/* The sum of RFC 1071 in 16 bits. */
INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* Keeps the comparison in this form: the verifier accepts no other. */
#define BEHIND(pointer, end) ({ const void *p = (pointer); __asm__ volatile("" : "+r"(p)); p > (const void *)(end); })

/* The sum of two IPv6 addresses. */
INLINE __u64 sum_of_ends(const __u32 *from, const __u32 *to)
{
	return (__u64)from[0] + from[1] + from[2] + from[3] + to[0] + to[1] + to[2] + to[3];
}

/* Whether the UDP checksum is valid; `sum` is that of the addresses. A packet of a local socket at the other end of a veth has only a
 * partial checksum, which cannot be detected otherwise; and the kernel must drop and count invalid packets itself. */
INLINE int is_sound(__u64 sum, const struct udphdr *udp, void *end, __u32 length)
{
	const __u8 *at = (const void *)udp;
	sum += (__u64)udp->len + __builtin_bswap16(UDP);
	for (__u32 block = 0; block < LARGEST / 32 && length >= 32; block++) {
		const __u32 *words = (const void *)at;
		if (BEHIND(at + 32, end))
			return 0;
		sum += (__u64)words[0] + words[1] + words[2] + words[3];
		sum += (__u64)words[4] + words[5] + words[6] + words[7];
		at += 32;
		length -= 32;
	}
	for (__u32 word = 0; word < 7 && length >= 4; word++) {
		if (BEHIND(at + 4, end))
			return 0;
		sum += *(const __u32 *)at;
		at += 4;
		length -= 4;
	}
	if (length >= 2) {
		if (BEHIND(at + 2, end))
			return 0;
		sum += *(const __u16 *)at;
		at += 2;
		length -= 2;
	}
	if (length) {
		if (BEHIND(at + 1, end))
			return 0;
		sum += *at;
	}
	return fold(sum) == 0xffff;
}

#endif
