/* The kernel relay: forwards RTP streams between the drivers of network cards.
 *
 * The forwarder in user space decides. It opens a flow for a stream when it has just forwarded a packet of it. Only the next packet of the
 * stream is relayed here: same address and source, same payload type, next sequence number. All other packets are passed to the kernel. So
 * no packet overtakes another one on its way to user space, and every exception (loss, duplicates, events, a new source) is handled and
 * counted by the forwarder.
 *
 * One record of one cache line holds the compared, the written and the counted fields. */
#include "bpf.h"
#include "sum.h"
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this program supports only little-endian machines"
#endif

#define DONT_FRAGMENT 0x4000
#define FRAGMENT 0x3fff

/* Largest number of local addresses of a family; the ports of the first one are the first 65,536 flows of the family, and so on. */
#define LOCALS 8

/* Up to this size, bytes, packets must not be fragmented and need no unique identification, as those of our sockets. */
#define ATOMIC 1280

#define SHARED 8
#define SHORT 16 /* ticks */

/* Differences of transit times that do not count as jitter, as in crates/media/src/stats/jitter.rs for consecutive packets. */
#define CLOCK_STEP 488281 /* ticks: half a second */
#define PAUSE 4882812 /* ticks: 5 s */

enum state { CLOSED, OPEN, BUSY };

/* crates/net/src/relay/table.rs uses the same layout. Addresses, ports and checksums are in network order. A tick is 1,024 ns. */
struct flow {
	__u32 state;
	__u32 source;
	__u16 source_port;
	__u16 our_port; /* source port of sent packets */
	__u32 next; /* extended sequence number of the only packet to be relayed */
	__u32 ssrc;
	__u8 payload_type;
	__u8 unused;
	__u16 way;
	__u32 destination;
	__u16 destination_port;
	__u16 change; /* of the UDP checksum, by the rewritten fields */
	__u32 scale; /* ticks per timestamp unit, times 65,536; 0: unknown, no jitter */
	__u32 timestamp;
	__u32 arrived; /* ticks */
	__u32 octets; /* of UDP payload */
	__u32 jitter; /* ticks, times 16 */
	__u32 jitter_sum; /* ticks */
	__u32 jitter_most; /* as jitter */
	__u16 gap_least; /* 64 ticks */
	__u16 gap_most;
} __attribute__((aligned(64)));

/* An IPv6 flow: the same record, whose addresses are unused, and these fields. */
struct flow6 {
	struct flow flow;
	__u32 source[4];
	__u32 destination[4];
	__u32 from[4]; /* our address, the source of sent packets */
	__u32 unused[4];
} __attribute__((aligned(64)));

/* The next hop of a path. Never changed while it is valid. */
struct way {
	__u32 valid;
	__u32 device; /* index in `devices`; `interface` is the interface index of the kernel */
	__u32 interface;
	__u32 address; /* our IPv4 address, the source of sent packets */
	__u32 cards[3]; /* MAC addresses of the next hop and of ours */
	__u16 longest; /* MTU, bytes */
	__u8 class;
	__u8 unused;
};

struct local {
	__u32 address;
	__u32 interface;
	__u16 card[3];
	__u16 unused;
};

/* Set at load time, so that they are constants for the kernel's JIT compiler. */
const volatile __u32 local_count = 0;
const volatile struct local locals[LOCALS] = {};

struct local6 {
	__u32 address[4];
	__u32 interface;
	__u16 card[3];
	__u16 unused;
};

const volatile __u32 local6_count = 0;
const volatile struct local6 locals6[LOCALS] = {};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, 65536); /* times the number of local addresses */
	TYPE(key, __u32);
	TYPE(value, struct flow);
} flows SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, 65536); /* times the number of local addresses */
	TYPE(key, __u32);
	TYPE(value, struct flow6);
} flows6 SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, 65536);
	TYPE(key, __u32);
	TYPE(value, struct way);
} ways SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_DEVMAP);
	NUMBER(max_entries, 2 * LOCALS);
	TYPE(key, __u32);
	TYPE(value, __u32);
} devices SECTION(".maps");

/* A CPU's last reading of the clock. Packets are processed in groups of SHARED. */
struct look {
	__u64 jiffies;
	__u32 now; /* ticks */
	__u32 begun; /* time of the group's first packet */
	__u32 left; /* packets until the group is full */
	__u32 shared; /* the group shares that time */
};

struct {
	NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct look);
} clock SECTION(".maps");

struct rtp {
	__u8 first;
	__u8 payload_type;
	__u16 sequence;
	__u32 timestamp;
	__u32 ssrc;
};

/* The headers as they are in memory, without packed structures, so that each word is read with one load. */
struct headers {
	__u16 to[3];
	__u16 from[3];
	__u16 protocol;
	/* struct iphdr or struct ipv6hdr, struct udphdr, struct rtp */
};

/* An IP header without options, in words: reading a word after writing parts of it would stall on store forwarding. */
struct words {
	__u32 first; /* version, length, class; whole length */
	__u32 fragment; /* identification; flags and offset */
	__u32 life; /* time to live, protocol; checksum */
	__u32 source;
	__u32 destination;
};

/* Positions of fields in those words on a little-endian machine. */
#define CLASS 0x0000ff00
#define ONE_HOP 0x00000001
#define CHECKSUM 0xffff0000
#define WHOLE 0x00400100 /* identification 1, not to be fragmented */

INLINE __u64 sum_of_header(struct words ip)
{
	return (__u64)ip.first + ip.fragment + ip.life + ip.source + ip.destination;
}

/* Unlocks the record. Earlier writes to it must be visible before the unlock is. */
INLINE void release(struct flow *flow)
{
#ifdef STORES_IN_ORDER
	__asm__ volatile("" ::: "memory");
	*(volatile __u32 *)&flow->state = OPEN;
#else
	__sync_lock_test_and_set(&flow->state, OPEN);
#endif
}

/* The time in ticks. Reading the clock costs as much as all computation for a packet. So packets of a burst, SHARED of them within SHORT,
 * share one reading, but never across jiffies. Packets through sockets likewise have the time of their batch. */
INLINE __u32 time(void)
{
	__u32 zero = 0;
	struct look *look = map_lookup(&clock, &zero);
	if (!look)
		return (__u32)(clock_monotonic() >> 10);
	__u64 jiffies = clock_jiffies();
	if (look->left && look->shared && look->jiffies == jiffies) {
		look->left -= 1;
		return look->now;
	}
	__u32 now = (__u32)(clock_monotonic() >> 10);
	if (!look->left || look->jiffies != jiffies) {
		look->shared = !look->left && now - look->begun <= SHORT;
		look->begun = now;
		look->left = SHARED;
		look->jiffies = jiffies;
	}
	look->left -= 1;
	look->now = now;
	return now;
}

/* There is no loss: relayed packets are in sequence. Jitter is that of RFC 3550 appendix A.8, in finer units than the timestamp's. */
INLINE void count(struct flow *flow, __u32 now, __u32 timestamp, __u32 octets)
{
	__u32 gap = now - flow->arrived;
	flow->arrived = now;
	flow->next += 1;
	flow->octets += octets;
	__u32 coarse = gap >> 6;
	if (coarse > 0xffff)
		coarse = 0xffff;
	if (coarse < flow->gap_least)
		flow->gap_least = coarse;
	if (coarse > flow->gap_most)
		flow->gap_most = coarse;
	if (flow->scale) {
		__s64 media = ((__s64)(__s32)(timestamp - flow->timestamp) * flow->scale) >> 16;
		__s64 difference = (__s64)gap - media;
		__s64 backward = media < 0 || difference < 0;
		if (difference < 0)
			difference = -difference;
		__u64 jitter = flow->jitter;
		/* The media clock has restarted: the jitter of this packet is undefined. */
		if (difference <= CLOCK_STEP || (!backward && difference <= PAUSE))
			jitter = jitter + (__u64)difference - ((jitter + 8) >> 4);
		if (jitter > 0xffffffff)
			jitter = 0xffffffff;
		flow->jitter = (__u32)jitter;
		flow->jitter_sum += (__u32)(jitter >> 4);
		if (jitter > flow->jitter_most)
			flow->jitter_most = (__u32)jitter;
	}
	flow->timestamp = timestamp;
}

INLINE int same(const volatile __u32 *one, const __u32 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

/* The same for IPv6, in a separate function, so that the code for IPv4 is unaffected. The only checksum is that of UDP, which is mandatory
 * (RFC 8200 section 8.1), and routers do not fragment packets. */
static __attribute__((noinline)) int relay6(struct xdp_md *context)
{
	struct headers *frame = (void *)(long)context->data;
	struct ipv6hdr *ip = (void *)(frame + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct rtp *rtp = (void *)(udp + 1);
	void *end = (void *)(long)context->data_end;
	if ((void *)(rtp + 1) > end)
		return XDP_PASS;
	__u32 *words = (void *)ip, *from = words + 2, *to = words + 6;
	/* Version 6; no extension headers; hop limit left. */
	if ((*(__u8 *)ip & 0xf0) != 0x60 || ip->nexthdr != UDP || ip->hop_limit <= 1)
		return XDP_PASS;
	__u32 length = __builtin_bswap16(ip->payload_len), total = length + sizeof(*ip);
	if (length < sizeof(*udp) + sizeof(*rtp) || total > LARGEST || udp->len != ip->payload_len || !udp->check
	    || (void *)ip + total > end || rtp->first != 0x80)
		return XDP_PASS;

	__u32 place = 0xffffffff, interface = context->ingress_ifindex;
#pragma unroll
	for (__u32 number = 0; number < LOCALS; number++) {
		const volatile struct local6 *local = &locals6[number];
		if (number < local6_count && local->interface == interface && same(local->address, to)
		    && local->card[0] == frame->to[0] && local->card[1] == frame->to[1]
		    && local->card[2] == frame->to[2])
			place = number << 16;
	}
	if (place == 0xffffffff)
		return XDP_PASS;
	place |= __builtin_bswap16(udp->dest);
	struct flow6 *whole = map_lookup(&flows6, &place);
	if (!whole || whole->flow.state != OPEN || !is_sound(sum_of_ends(from, to), udp, end, length))
		return XDP_PASS;
	struct flow *flow = &whole->flow;
	if (__sync_val_compare_and_swap(&flow->state, OPEN, BUSY) != OPEN)
		return XDP_PASS;
	if (!same(whole->source, from) || flow->source_port != udp->source || flow->ssrc != rtp->ssrc
	    || flow->payload_type != (rtp->payload_type & 0x7f)
	    || (__u16)flow->next != __builtin_bswap16(rtp->sequence))
		goto up;
	__u32 number = flow->way;
	struct way *way = map_lookup(&ways, &number);
	if (!way || !way->valid || total > way->longest)
		goto up;

	count(flow, time(), __builtin_bswap32(rtp->timestamp), length - sizeof(*udp));
	__u16 check = ~fold((__u64)(__u16)~udp->check + flow->change);
	udp->check = check ? check : 0xffff;
	udp->source = flow->our_port;
	udp->dest = flow->destination_port;
	/* Version and class, no flow label. */
	words[0] = __builtin_bswap32(6u << 28 | (__u32)way->class << 20);
	ip->hop_limit -= 1;
#pragma unroll
	for (int word = 0; word < 4; word++) {
		from[word] = whole->from[word];
		to[word] = whole->destination[word];
	}
	__u32 *cards = (void *)frame;
#pragma unroll
	for (int word = 0; word < 3; word++)
		cards[word] = way->cards[word];
	__u32 device = way->device, back = way->interface == interface;
	release(flow);
	return back ? XDP_TX : redirect_map(&devices, device, XDP_DROP);
up:
	release(flow);
	return XDP_PASS;
}

SECTION("xdp")
int relay(struct xdp_md *context)
{
	struct headers *frame = (void *)(long)context->data;
	struct iphdr *ip = (void *)(frame + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct rtp *rtp = (void *)(udp + 1);
	void *end = (void *)(long)context->data_end;
	if ((void *)(rtp + 1) > end)
		return XDP_PASS;
	if (frame->protocol != __builtin_bswap16(ETH_P_IP))
		return frame->protocol == __builtin_bswap16(ETH_P_IPV6) ? relay6(context) : XDP_PASS;
	/* Version 4, no options; no fragment; time to live left; UDP. */
	if (*(__u8 *)ip != 0x45 || ip->protocol != UDP
	    || ip->ttl <= 1 || ip->frag_off & __builtin_bswap16(FRAGMENT))
		return XDP_PASS;
	__u32 total = __builtin_bswap16(ip->tot_len);
	__u32 length = total - sizeof(*ip);
	if (total < sizeof(*ip) + sizeof(*udp) + sizeof(*rtp) || total > LARGEST
	    || __builtin_bswap16(udp->len) != length || !udp->check || (void *)ip + total > end)
		return XDP_PASS;
	/* Version 2; no padding, extension or contributing sources, which user space must validate. */
	if (rtp->first != 0x80)
		return XDP_PASS;

	__u32 place = 0xffffffff, interface = context->ingress_ifindex;
#pragma unroll
	for (__u32 number = 0; number < LOCALS; number++) {
		const volatile struct local *local = &locals[number];
		if (number < local_count && local->address == ip->daddr && local->interface == interface
		    && local->card[0] == frame->to[0] && local->card[1] == frame->to[1]
		    && local->card[2] == frame->to[2])
			place = number << 16;
	}
	if (place == 0xffffffff)
		return XDP_PASS;
	place |= __builtin_bswap16(udp->dest);
	struct flow *flow = map_lookup(&flows, &place);
	if (!flow || flow->state != OPEN)
		return XDP_PASS;
	struct words *header = (void *)ip;
	struct words words = *header;
	if (fold(sum_of_header(words)) != 0xffff || !is_sound((__u64)ip->saddr + ip->daddr, udp, end, length))
		return XDP_PASS;

	/* If the record is locked, it is being read or changed. */
	if (__sync_val_compare_and_swap(&flow->state, OPEN, BUSY) != OPEN)
		return XDP_PASS;
	if (flow->source != ip->saddr || flow->source_port != udp->source || flow->ssrc != rtp->ssrc
	    || flow->payload_type != (rtp->payload_type & 0x7f)
	    || (__u16)flow->next != __builtin_bswap16(rtp->sequence))
		goto up;
	__u32 number = flow->way;
	struct way *way = map_lookup(&ways, &number);
	if (!way || !way->valid || total > way->longest
	    || (total > ATOMIC && !(ip->frag_off & __builtin_bswap16(DONT_FRAGMENT))))
		goto up;

	count(flow, time(), __builtin_bswap32(rtp->timestamp), length - sizeof(*udp));
	__u16 check = ~fold((__u64)(__u16)~udp->check + flow->change);
	udp->check = check ? check : 0xffff;
	udp->source = flow->our_port;
	udp->dest = flow->destination_port;
	words.first = (words.first & ~CLASS) | (__u32)way->class << 8;
	if (total <= ATOMIC)
		words.fragment = WHOLE;
	words.life = (words.life - ONE_HOP) & ~CHECKSUM;
	words.source = way->address;
	words.destination = flow->destination;
	words.life |= (__u32)(__u16)~fold(sum_of_header(words)) << 16;
	*header = words;
	__u32 *cards = (void *)frame;
#pragma unroll
	for (int word = 0; word < 3; word++)
		cards[word] = way->cards[word];
	__u32 device = way->device, back = way->interface == interface;
	release(flow);
	return back ? XDP_TX : redirect_map(&devices, device, XDP_DROP);
up:
	release(flow);
	return XDP_PASS;
}

LICENCE;
