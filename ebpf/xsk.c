/* Redirects media datagrams from the network card's driver to an AF_XDP socket, bypassing the kernel's network stack.
 *
 * Eligible are complete UDP datagrams, unfragmented and without IP options, with valid checksums, to a port that is open in the table.
 * All other packets are passed to the kernel, and reach the port's other socket: so closed ports respond as usual, the kernel drops
 * invalid packets, and it accepts packets of a local sender behind a veth with a partial checksum, which cannot be detected here. */
#include "bpf.h"
#include "sum.h"
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#define FRAGMENT 0x3fff

/* Largest number of local addresses; crates/net/src/xsk/program.rs uses the same layout. */
#define LOCALS 16
/* Largest number of receive queues of an interface, as a power of two. */
#define QUEUES_SHIFT 6

struct local {
	__u32 address[4]; /* in network order; IPv4 mapped into IPv6 */
	__u32 interface;
	__u32 place; /* index of the interface in `sockets` */
	__u16 card[3];
	__u16 unused;
};

const volatile __u32 local_count = 0;
const volatile struct local locals[LOCALS] = {};

/* Whether a port is open; the ports of the first address are the first 65,536 entries, and so on. */
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, 65536); /* times the number of local addresses */
	TYPE(key, __u32);
	TYPE(value, __u64);
} open SECTION(".maps");

/* Indexed by interface and receive queue. */
struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(max_entries, LOCALS << QUEUES_SHIFT);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SECTION(".maps");

struct headers {
	__u16 to[3];
	__u16 from[3];
	__u16 protocol;
};

INLINE int lead_on(struct xdp_md *context, const struct headers *frame, const __u32 *to, __u64 ends,
		   const struct udphdr *udp, __u32 length, void *end)
{
	__u32 place = 0xffffffff, socket = 0, interface = context->ingress_ifindex;
	for (__u32 number = 0; number < LOCALS && number < local_count; number++) {
		const volatile struct local *local = &locals[number];
		if (local->interface == interface && local->address[0] == to[0] && local->address[1] == to[1]
		    && local->address[2] == to[2] && local->address[3] == to[3] && local->card[0] == frame->to[0]
		    && local->card[1] == frame->to[1] && local->card[2] == frame->to[2]) {
			place = number << 16;
			socket = local->place << QUEUES_SHIFT;
		}
	}
	__u32 queue = context->rx_queue_index;
	if (place == 0xffffffff || queue >> QUEUES_SHIFT)
		return XDP_PASS;
	place |= __builtin_bswap16(udp->dest);
	__u64 *is_open = map_lookup(&open, &place);
	if (!is_open || !*is_open || !is_sound(ends, udp, end, length))
		return XDP_PASS;
	return redirect_map(&sockets, socket | queue, XDP_PASS);
}

static __attribute__((noinline)) int lead6(struct xdp_md *context)
{
	struct headers *frame = (void *)(long)context->data;
	struct ipv6hdr *ip = (void *)(frame + 1);
	struct udphdr *udp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	if ((void *)(udp + 1) > end)
		return XDP_PASS;
	const __u32 *words = (void *)ip, *from = words + 2, *to = words + 6;
	if ((*(__u8 *)ip & 0xf0) != 0x60 || ip->nexthdr != UDP)
		return XDP_PASS;
	/* A link-local source needs its interface (scope), which a redirected frame does not carry. */
	if ((from[0] & __builtin_bswap32(0xffc00000)) == __builtin_bswap32(0xfe800000))
		return XDP_PASS;
	__u32 length = __builtin_bswap16(ip->payload_len), total = length + sizeof(*ip);
	if (length < sizeof(*udp) || total > LARGEST || udp->len != ip->payload_len || !udp->check
	    || (void *)ip + total > end)
		return XDP_PASS;
	return lead_on(context, frame, to, sum_of_ends(from, to), udp, length, end);
}

SECTION("xdp")
int lead(struct xdp_md *context)
{
	struct headers *frame = (void *)(long)context->data;
	struct iphdr *ip = (void *)(frame + 1);
	struct udphdr *udp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	if ((void *)(udp + 1) > end)
		return XDP_PASS;
	if (frame->protocol != __builtin_bswap16(ETH_P_IP))
		return frame->protocol == __builtin_bswap16(ETH_P_IPV6) ? lead6(context) : XDP_PASS;
	if (*(__u8 *)ip != 0x45 || ip->protocol != UDP || ip->frag_off & __builtin_bswap16(FRAGMENT))
		return XDP_PASS;
	__u32 total = __builtin_bswap16(ip->tot_len), length = total - sizeof(*ip);
	if (total < sizeof(*ip) + sizeof(*udp) || total > LARGEST || __builtin_bswap16(udp->len) != length
	    || !udp->check || (void *)ip + total > end)
		return XDP_PASS;
	const __u32 *words = (void *)ip;
	if (fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
		return XDP_PASS;
	__u32 to[4] = { 0, 0, __builtin_bswap32(0xffff), ip->daddr };
	return lead_on(context, frame, to, (__u64)ip->saddr + ip->daddr, udp, length, end);
}

LICENCE;
