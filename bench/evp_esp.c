/* Seals and opens ESP packets of a tunnel with OpenSSL's EVP: the sequence of calls of a user-space IPsec end, contexts
 * and keys prepared once. One round; prints nanoseconds a packet as crates/protect/examples/esp_cost.rs does.
 *
 * cc -O2 -o evp_esp bench/evp_esp.c -lcrypto
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PACKETS = 256, LOOPS = 200, ROOM = 2048 };

static unsigned char packets[PACKETS][ROOM];
static unsigned char key[32], mac_key[64];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void must(int ok, const char *step)
{
    if (ok != 1) {
        fprintf(stderr, "%s failed\n", step);
        exit(1);
    }
}

/* Header, trailer and padding, as any implementation must write them. Returns the length of the plaintext. */
static int lay_out(unsigned char *p, int inner, int iv, int align, unsigned sequence)
{
    int plain = (inner + 2 + align - 1) / align * align;
    int pad = plain - inner - 2;
    memset(p, 0, 8);
    p[2] = 0x12;
    p[3] = 0x34;
    for (int i = 0; i < 4; i++)
        p[4 + i] = sequence >> (24 - 8 * i);
    memset(p + 8, 0, iv);
    memcpy(p + 8, p + 4, 4);
    for (int i = 0; i < pad; i++)
        p[8 + iv + inner + i] = i + 1;
    p[8 + iv + plain - 2] = pad;
    p[8 + iv + plain - 1] = 4;
    return plain;
}

static void cbc(const char *name, int inner, const EVP_MD *hash, int mac_length, int icv)
{
    EVP_CIPHER_CTX *seal = EVP_CIPHER_CTX_new(), *open = EVP_CIPHER_CTX_new();
    HMAC_CTX *mac = HMAC_CTX_new();
    must(EVP_EncryptInit_ex(seal, EVP_aes_128_cbc(), NULL, key, NULL), "key");
    must(EVP_DecryptInit_ex(open, EVP_aes_128_cbc(), NULL, key, NULL), "key");
    EVP_CIPHER_CTX_set_padding(seal, 0);
    EVP_CIPHER_CTX_set_padding(open, 0);
    must(HMAC_Init_ex(mac, mac_key, mac_length, hash, NULL), "key");
    double sealing = 1e18, opening = 1e18;
    unsigned sequence = 0;
    unsigned char tag[64];
    unsigned length;
    int n, plain = 0;
    for (int loop = 0; loop < LOOPS; loop++) {
        for (int i = 0; i < PACKETS; i++)
            memset(packets[i] + 24, 0x5a, inner);
        double start = now();
        for (int i = 0; i < PACKETS; i++) {
            unsigned char *p = packets[i];
            plain = lay_out(p, inner, 16, 16, ++sequence);
            must(EVP_EncryptInit_ex(seal, NULL, NULL, NULL, p + 8), "iv");
            must(EVP_EncryptUpdate(seal, p + 24, &n, p + 24, plain), "encrypt");
            must(HMAC_Init_ex(mac, NULL, 0, NULL, NULL), "mac");
            must(HMAC_Update(mac, p, 24 + plain), "mac");
            must(HMAC_Final(mac, tag, &length), "mac");
            memcpy(p + 24 + plain, tag, icv);
        }
        double middle = now();
        for (int i = 0; i < PACKETS; i++) {
            unsigned char *p = packets[i];
            must(HMAC_Init_ex(mac, NULL, 0, NULL, NULL), "mac");
            must(HMAC_Update(mac, p, 24 + plain), "mac");
            must(HMAC_Final(mac, tag, &length), "mac");
            must(memcmp(tag, p + 24 + plain, icv) == 0, "verify");
            must(EVP_DecryptInit_ex(open, NULL, NULL, NULL, p + 8), "iv");
            must(EVP_DecryptUpdate(open, p + 24, &n, p + 24, plain), "decrypt");
            must(p[24] == 0x5a && p[24 + plain - 1] == 4, "plaintext");
        }
        double end = now();
        if (middle - start < sealing)
            sealing = middle - start;
        if (end - middle < opening)
            opening = end - middle;
    }
    printf("seal %s %.1f\nopen %s %.1f\n", name, sealing / PACKETS, name, opening / PACKETS);
    EVP_CIPHER_CTX_free(seal);
    EVP_CIPHER_CTX_free(open);
    HMAC_CTX_free(mac);
}

static void aead(const char *name, int inner, const EVP_CIPHER *cipher)
{
    EVP_CIPHER_CTX *seal = EVP_CIPHER_CTX_new(), *open = EVP_CIPHER_CTX_new();
    must(EVP_EncryptInit_ex(seal, cipher, NULL, key, NULL), "key");
    must(EVP_DecryptInit_ex(open, cipher, NULL, key, NULL), "key");
    double sealing = 1e18, opening = 1e18;
    unsigned sequence = 0;
    int n, plain = 0;
    unsigned char nonce[12] = {1, 2, 3, 4};
    for (int loop = 0; loop < LOOPS; loop++) {
        for (int i = 0; i < PACKETS; i++)
            memset(packets[i] + 16, 0x5a, inner);
        double start = now();
        for (int i = 0; i < PACKETS; i++) {
            unsigned char *p = packets[i];
            plain = lay_out(p, inner, 8, 4, ++sequence);
            memcpy(nonce + 4, p + 8, 8);
            must(EVP_EncryptInit_ex(seal, NULL, NULL, NULL, nonce), "iv");
            must(EVP_EncryptUpdate(seal, NULL, &n, p, 8), "aad");
            must(EVP_EncryptUpdate(seal, p + 16, &n, p + 16, plain), "encrypt");
            must(EVP_EncryptFinal_ex(seal, p + 16 + plain, &n), "final");
            must(EVP_CIPHER_CTX_ctrl(seal, EVP_CTRL_AEAD_GET_TAG, 16, p + 16 + plain), "tag");
        }
        double middle = now();
        for (int i = 0; i < PACKETS; i++) {
            unsigned char *p = packets[i];
            memcpy(nonce + 4, p + 8, 8);
            must(EVP_DecryptInit_ex(open, NULL, NULL, NULL, nonce), "iv");
            must(EVP_DecryptUpdate(open, NULL, &n, p, 8), "aad");
            must(EVP_DecryptUpdate(open, p + 16, &n, p + 16, plain), "decrypt");
            must(EVP_CIPHER_CTX_ctrl(open, EVP_CTRL_AEAD_SET_TAG, 16, p + 16 + plain), "tag");
            must(EVP_DecryptFinal_ex(open, p + 16 + plain, &n), "verify");
        }
        double end = now();
        if (middle - start < sealing)
            sealing = middle - start;
        if (end - middle < opening)
            opening = end - middle;
    }
    printf("seal %s %.1f\nopen %s %.1f\n", name, sealing / PACKETS, name, opening / PACKETS);
    EVP_CIPHER_CTX_free(seal);
    EVP_CIPHER_CTX_free(open);
}

int main(int count, char **arguments)
{
    int inner = count > 1 ? atoi(arguments[1]) : 60;
    if (inner < 20 || inner > 1500) {
        fprintf(stderr, "usage: evp_esp [inner packet bytes, 20 to 1500]\n");
        return 2;
    }
    memset(key, 3, sizeof key);
    memset(mac_key, 5, sizeof mac_key);
    cbc("AES-128-CBC+HMAC-SHA1-96", inner, EVP_sha1(), 20, 12);
    aead("AES-128-GCM", inner, EVP_aes_128_gcm());
    cbc("AES-128-CBC+HMAC-SHA2-256-128", inner, EVP_sha256(), 32, 16);
    aead("CHACHA20-POLY1305", inner, EVP_chacha20_poly1305());
    return 0;
}
