/* Programs to measure the kernel relay: a generator of RTP, an empty redirect for comparison, and a counting sink. Used only by
 * crates/net/examples/relay_rate.rs. */
#include "bpf.h"
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

/* Number of streams, whose packets are generated in turn; set at load time. */
const volatile __u32 streams = 1;

/* Destination MAC address; set at load time. */
const volatile __u16 card[3] = {};

/* Largest number of packets in flight, less than the queues of both wires hold (256), and the interval of its check. */
#define UNDER_WAY 160
#define LOOK 32
/* Number of checks, some microseconds apart, after which a packet is dropped. */
#define LOOKS 64
#define APART 32

/* For each stream: destination address, ports, and the sequence number of the next packet. */
struct stream {
	__u32 destination;
	__u16 port;
	__u16 sequence;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct stream);
} sources SECTION(".maps");

/* Each in its own cache line, because two cores count. */
struct counter {
	__u64 value;
	__u64 unused[7];
} __attribute__((aligned(64)));

/* Packets generated, and packets received. */
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 2);
	TYPE(key, __u32);
	TYPE(value, struct counter);
} counters SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_DEVMAP);
	NUMBER(max_entries, 2);
	TYPE(key, __u32);
	TYPE(value, __u32);
} ports SECTION(".maps");

INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)((sum & 0xffff) + (sum >> 16));
}

/* Turns a frame into the next packet of the next stream, and sends it through port 0. The IP packet has 60 bytes: G.729, 20 ms. */
SECTION("xdp")
int generate(struct xdp_md *context)
{
	__u8 *frame = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	if ((void *)(frame + 74) > end)
		return XDP_ABORTED;
	__u32 zero = 0, one = 1;
	struct counter *made = map_lookup(&counters, &zero);
	volatile struct counter *arrived = map_lookup(&counters, &one);
	if (!made || !arrived)
		return XDP_ABORTED;
	__u64 turn = made->value;
	/* Never more in flight than the queues of both wires hold: a lost packet would end the offload of its stream. The other core's count
	 * is read only from time to time, so that its cache line is not contended. */
	if (turn % LOOK == 0) {
		int looks = 0;
		while ((__s64)(turn - arrived->value) > UNDER_WAY) {
			if (++looks > LOOKS)
				return XDP_DROP;
			for (int wait = 0; wait < APART; wait++)
				clock_monotonic();
		}
	}
	__u32 number = (__u32)(turn % streams);
	made->value = turn + 1;
	struct stream *stream = map_lookup(&sources, &number);
	if (!stream)
		return XDP_ABORTED;
	struct iphdr *ip = (void *)(frame + 14);
	struct udphdr *udp = (void *)(frame + 34);
	/* Frames are reused with their content from the far end. */
#pragma unroll
	for (int word = 0; word < 3; word++)
		((__u16 *)frame)[word] = card[word];
	ip->tos = 0;
	ip->saddr = __builtin_bswap32(0x0a4d0002);
	ip->daddr = stream->destination;
	ip->ttl = 64;
	ip->check = 0;
	__u64 sum = 0;
#pragma unroll
	for (int word = 0; word < 5; word++)
		sum += ((__u32 *)ip)[word];
	ip->check = ~fold(sum);
	udp->source = stream->port;
	udp->dest = stream->port;
	*(__u16 *)(frame + 44) = __builtin_bswap16(stream->sequence);
	*(__u32 *)(frame + 46) = __builtin_bswap32(160 * (__u32)stream->sequence);
	*(__u32 *)(frame + 50) = __builtin_bswap32(number);
	stream->sequence += 1;
	udp->check = 0;
	sum = (__u64)ip->saddr + ip->daddr + udp->len + __builtin_bswap16(17);
#pragma unroll
	for (int word = 0; word < 10; word++)
		sum += ((__u32 *)udp)[word];
	__u16 check = ~fold(sum);
	udp->check = check ? check : 0xffff;
	return redirect_map(&ports, 0, XDP_ABORTED);
}

/* The minimum work of a relay. */
SECTION("xdp")
int through(struct xdp_md *context)
{
	return redirect_map(&ports, 1, XDP_ABORTED);
}

/* Counts and drops packets. */
SECTION("xdp")
int sink(struct xdp_md *context)
{
	__u32 one = 1;
	struct counter *arrived = map_lookup(&counters, &one);
	if (arrived)
		arrived->value += 1;
	return XDP_DROP;
}

LICENCE;
