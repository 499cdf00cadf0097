/* sseload: keep N concurrent streaming requests open against an OpenAI-style server, time every SSE event, and weigh the server.
 *
 *   cc -O2 -o sseload sseload.c -lssl -lcrypto        (without OpenSSL: cc -O2 -DNO_TLS -o sseload sseload.c)
 *   sseload -p PORT [-c STREAMS] [-w WARM_UP_S] [-d SECONDS] [-s SPREAD_S] [-g GAP_MS] [-P PID]...
 *           [-H 'header: value']... [-b BODY] [-u PATH] [-t] [-1]
 *
 * Each of the STREAMS connections, whose starts are spread evenly over SPREAD_S, sends the request, reads the response to
 * its end and starts over (-1: never again). A connection is used again when the server keeps it open after a complete
 * body; if it then closes before the first byte of the next response, that is a reconnect and no ending. Counting begins
 * after WARM_UP_S and ends SECONDS later, whatever is still open then. -t speaks TLS, unverified.
 *
 * Prints one JSON object: the content events (text, reasoning or arguments that are not empty) and the others (role,
 * finish, usage, [DONE]), their rate, endings (complete / fin / rst / open at the deadline), reconnects, answers other
 * than 200, bytes, the CPU time of the PIDs; and as n, mean, p50, p90, p99, p999, max in ms: ttfb_ms from the request to
 * the first byte of the body, gap_ms between two events of one stream, and with -g late_ms, how far behind the asked pace
 * an event came: the pace is GAP_MS per event from that event of the same response which came earliest for its place.
 * [DONE] has no gap and no lateness. Loopback only: it connects to 127.0.0.1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifndef NO_TLS
#include <openssl/ssl.h>
#endif

enum { EVENT_MAX = 1024, MAX_PIDS = 64 };
enum chunk_state { SIZE, EXTENSION, DATA, DATA_CR, DATA_LF, TRAILER };
enum ending { COMPLETE, FIN, RST };

struct conn {
    int fd, sent, used_before, answered, in_body, chunked, newlines, started, done;
    enum chunk_state state;
    long left;                   /* of the chunk or the body; -1: to the end of the connection */
    int trailer;                 /* bytes of the trailer's current line */
    int head_length, event_length;
    char head[4096], event[EVENT_MAX];
    double asked, last;
    float *offsets;              /* of each event: its time since `asked` minus its place times the gap, in ms */
    int places, capacity;
#ifndef NO_TLS
    SSL *ssl;
#endif
};
struct samples { float *values; long count, capacity; };

static struct sockaddr_in address;
static char *request;
static int request_length, poller, once, tls, counting, pids[MAX_PIDS], pid_count;
static long content, others, endings[3], reconnects, not_200, bytes_in;
static double gap_ms, deadline;
static struct samples ttfbs, gaps, lates;
#ifndef NO_TLS
static SSL_CTX *context;
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what) { perror(what); exit(2); }

static void add(struct samples *to, double value) {
    if (!counting) return;
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 4096;
        if (!(to->values = realloc(to->values, to->capacity * sizeof *to->values))) die("realloc");
    }
    to->values[to->count++] = value;
}

static double cpu_s(void) {
    double sum = 0;
    for (int i = 0; i < pid_count; i++) {
        char path[64], line[4096];
        snprintf(path, sizeof path, "/proc/%d/stat", pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        size_t n = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        line[n] = 0;
        unsigned long user = 0, system = 0;
        char *p = strrchr(line, ')');
        if (p && sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2)
            sum += (double)(user + system) / sysconf(_SC_CLK_TCK);
    }
    return sum;
}

static void watch(struct conn *c, int operation, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &e);
}

/* Write and read as read(2) does, with errno EAGAIN where the connection is not ready. */
static ssize_t put(struct conn *c, const char *data, size_t size) {
#ifndef NO_TLS
    if (c->ssl) {
        int n = SSL_write(c->ssl, data, size);
        if (n > 0) return n;
        int e = SSL_get_error(c->ssl, n);
        errno = e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
        return -1;
    }
#endif
    return send(c->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t get(struct conn *c, char *data, size_t size) {
#ifndef NO_TLS
    if (c->ssl) {
        int n = SSL_read(c->ssl, data, size);
        if (n > 0) return n;
        int e = SSL_get_error(c->ssl, n);
        if (e == SSL_ERROR_ZERO_RETURN) return 0;
        errno = e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
        return -1;
    }
#endif
    return recv(c->fd, data, size, 0);
}

static void hang_up(struct conn *c) {
#ifndef NO_TLS
    if (c->ssl) SSL_free(c->ssl);
    c->ssl = NULL;
#endif
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void send_rest(struct conn *c) {
    if (c->sent == request_length) return;
    ssize_t n = put(c, request + c->sent, request_length - c->sent);
    if (n > 0) c->sent += n;
    watch(c, EPOLL_CTL_MOD, c->sent == request_length ? EPOLLIN | EPOLLRDHUP : EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

static void ask(struct conn *c) {
    c->answered = c->in_body = c->chunked = c->newlines = c->head_length = c->event_length = c->sent = 0;
    c->state = SIZE;
    c->left = c->places = c->trailer = 0;
    c->last = 0;
    c->started = 1;
    c->asked = now();
    c->used_before = c->fd >= 0;
    if (c->fd >= 0) { send_rest(c); return; }
    int one = 1;
    if ((c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (void *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect");
#ifndef NO_TLS
    if (tls) {
        c->ssl = SSL_new(context);
        SSL_set_fd(c->ssl, c->fd);
        SSL_set_connect_state(c->ssl);
    }
#endif
    watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

static void note_lateness(struct conn *c) {
    float earliest = c->places ? c->offsets[0] : 0;
    for (int i = 1; i < c->places; i++) if (c->offsets[i] < earliest) earliest = c->offsets[i];
    for (int i = 0; i < c->places; i++) add(&lates, c->offsets[i] - earliest);
    c->places = 0;
}

static void ended(struct conn *c, enum ending kind) {
    if (kind != COMPLETE && c->used_before && !c->answered) {
        if (counting) reconnects++;
        hang_up(c);
        ask(c);
        return;
    }
    if (counting) endings[kind]++;
    note_lateness(c);
    if (kind != COMPLETE || once) hang_up(c);
    if (once) c->done = 1; else ask(c);
}

/* Whether a member of the event is a string that is not empty. */
static int says(const char *event, const char *member) {
    for (const char *p = event; (p = strstr(p, member)); ) {
        p += strlen(member);
        while (*p == ' ') p++;
        if (*p == '"' && p[1] != '"') return 1;
    }
    return 0;
}

static void on_event(struct conn *c, double t) {
    c->event[c->event_length] = 0;
    c->event_length = 0;
    if (c->event[0] == ':') return; /* a comment */
    int is_done = strstr(c->event, "[DONE]") != NULL;
    int is_content = !is_done && (says(c->event, "\"content\":") || says(c->event, "\"text\":")
        || says(c->event, "\"arguments\":") || says(c->event, "\"reasoning_content\":"));
    if (counting) { if (is_content) content++; else others++; }
    if (is_done) return;
    if (c->last) add(&gaps, (t - c->last) * 1e3);
    c->last = t;
    if (!gap_ms) return;
    if (c->places == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 128;
        if (!(c->offsets = realloc(c->offsets, c->capacity * sizeof *c->offsets))) die("realloc");
    }
    c->offsets[c->places] = (t - c->asked) * 1e3 - c->places * gap_ms;
    c->places++;
}

static void on_body(struct conn *c, const char *p, long n, double t) {
    while (n > 0) {
        const char *end = memchr(p, '\n', n);
        long line = end ? end - p : n;
        if (line && !(line == 1 && *p == '\r')) {
            long room = EVENT_MAX - 1 - c->event_length, take = line < room ? line : room;
            memcpy(c->event + c->event_length, p, take);
            c->event_length += take;
            c->newlines = 0;
        }
        if (!end) return;
        if (++c->newlines == 2) { if (c->event_length) on_event(c, t); c->newlines = 0; }
        p = end + 1;
        n -= line + 1;
    }
}

/* Returns 1 when the response is complete. */
static int feed(struct conn *c, char *p, long n, double t) {
    if (!c->in_body) {
        long room = sizeof c->head - 1 - c->head_length, take = n < room ? n : room;
        memcpy(c->head + c->head_length, p, take);
        int before = c->head_length;
        c->head_length += take;
        c->head[c->head_length] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end) return 0;
        long used = end + 4 - c->head - before;
        end[2] = 0;
        c->in_body = 1;
        c->chunked = strcasestr(c->head, "\r\ntransfer-encoding: chunked") != NULL;
        if (counting && strncmp(c->head + 9, "200", 3)) not_200++;
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        c->left = c->chunked ? 0 : length ? atol(length + 17) : -1;
        p += used;
        n -= used;
        if (!c->chunked && !c->left) return 1;
    }
    if (n > 0 && !c->answered) { c->answered = 1; add(&ttfbs, (t - c->asked) * 1e3); }
    if (!c->chunked) {
        on_body(c, p, n, t);
        return c->left >= 0 && (c->left -= n) <= 0;
    }
    while (n > 0) switch (c->state) {
        case SIZE:
            if (*p == '\n') { c->state = c->left ? DATA : TRAILER; c->trailer = 0; }
            else if (*p == ';') c->state = EXTENSION;
            else if (*p != '\r') c->left = c->left * 16 + (*p <= '9' ? *p - '0' : (*p | 32) - 'a' + 10);
            p++; n--;
            break;
        case EXTENSION:
            if (*p == '\n') { c->state = c->left ? DATA : TRAILER; c->trailer = 0; }
            p++; n--;
            break;
        case DATA: {
            long k = n < c->left ? n : c->left;
            on_body(c, p, k, t);
            p += k; n -= k; c->left -= k;
            if (!c->left) c->state = DATA_CR;
            break;
        }
        case DATA_CR: p++; n--; c->state = DATA_LF; break;
        case DATA_LF: p++; n--; c->state = SIZE; break;
        case TRAILER:
            if (*p == '\n') { if (!c->trailer) return 1; c->trailer = 0; }
            else if (*p != '\r') c->trailer++;
            p++; n--;
            break;
    }
    return 0;
}

static void readable(struct conn *c) {
    static char buffer[1 << 18];
    do {
        ssize_t n = get(c, buffer, sizeof buffer);
        double t = now();
        if (n > 0) {
            if (counting) bytes_in += n;
            if (feed(c, buffer, n, t)) { ended(c, COMPLETE); return; }
        } else {
            if (n == 0) ended(c, FIN);
            else if (errno != EAGAIN) ended(c, RST);
            return;
        }
    } while (tls); /* what OpenSSL has decrypted wakes no epoll */
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, struct samples *s) {
    qsort(s->values, s->count, sizeof *s->values, by_value);
    double sum = 0;
    for (long i = 0; i < s->count; i++) sum += s->values[i];
    printf(", \"%s\": {\"n\": %ld, \"mean\": %.4f", name, s->count, s->count ? sum / s->count : 0);
    static const struct { const char *name; double part; } parts[] = {
        {"p50", .5}, {"p90", .9}, {"p99", .99}, {"p999", .999}, {"max", 1}};
    for (int i = 0; i < 5; i++)
        printf(", \"%s\": %.3f", parts[i].name, s->count ? s->values[(long)((s->count - 1) * parts[i].part)] : 0);
    printf("}");
}

int main(int argc, char **argv) {
    int port = 8080, streams = 1, option;
    double seconds = 5, warm_up = 0, spread = 0;
    static char headers[8192];
    const char *path = "/v1/chat/completions", *body = "{}";
    while ((option = getopt(argc, argv, "p:c:w:d:s:g:P:H:b:u:t1")) != -1) switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'c': streams = atoi(optarg); break;
        case 'w': warm_up = atof(optarg); break;
        case 'd': seconds = atof(optarg); break;
        case 's': spread = atof(optarg); break;
        case 'g': gap_ms = atof(optarg); break;
        case 'P': if (pid_count < MAX_PIDS) pids[pid_count++] = atoi(optarg); break;
        case 'H':
            if (strlen(headers) + strlen(optarg) + 3 > sizeof headers) { fprintf(stderr, "sseload: too many headers\n"); return 2; }
            strcat(strcat(headers, optarg), "\r\n");
            break;
        case 'b': body = optarg; break;
        case 'u': path = optarg; break;
        case 't': tls = 1; break;
        case '1': once = 1; break;
        default: return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) { files.rlim_cur = files.rlim_max; setrlimit(RLIMIT_NOFILE, &files); }
#ifdef NO_TLS
    if (tls) { fprintf(stderr, "sseload: built without TLS\n"); return 2; }
#else
    if (tls) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
#endif
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    request_length = asprintf(&request, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n%s"
        "Content-Length: %zu\r\n\r\n%s", path, port, headers, strlen(body), body);
    if ((poller = epoll_create1(0)) < 0) die("epoll_create1");
    struct conn *conns = calloc(streams, sizeof *conns);
    if (!conns) die("calloc");
    for (int i = 0; i < streams; i++) conns[i].fd = -1;
    struct epoll_event events[1024];
    double begin = now(), cpu = 0, counted_from = begin + warm_up;
    deadline = counted_from + seconds;
    int started = 0;
    for (;;) {
        double t = now();
        if (!counting && t >= counted_from) { counting = 1; counted_from = t; cpu = cpu_s(); }
        if (t >= deadline) break;
        while (started < streams && t >= begin + spread * started / streams) ask(&conns[started++]);
        double next = counting ? deadline : counted_from;
        if (started < streams && begin + spread * started / streams < next) next = begin + spread * started / streams;
        double wait_ms = (next - t) * 1e3;
        int n = epoll_wait(poller, events, 1024, wait_ms < 0 ? 0 : (int)wait_ms + 1);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (c->fd < 0) continue;
            if (events[i].events & EPOLLOUT) send_rest(c);
            if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable(c);
        }
        if (once && started == streams) {
            int live = 0;
            for (int i = 0; i < streams && !live; i++) live = !conns[i].done;
            if (!live) break;
        }
    }
    double span = now() - counted_from;
    cpu = cpu_s() - cpu;
    long open = 0;
    for (int i = 0; i < streams; i++) if (conns[i].started && !conns[i].done) { open++; note_lateness(&conns[i]); }
    printf("{\"streams\": %d, \"seconds\": %.3f, \"content_frames\": %ld, \"other_frames\": %ld, \"frames_per_s\": %.0f, "
        "\"complete\": %ld, \"fin\": %ld, \"rst\": %ld, \"open\": %ld, \"reconnects\": %ld, \"not_200\": %ld, \"bytes\": %ld, "
        "\"cpu_s\": %.2f, \"cpu_us_per_frame\": %.3f", streams, span, content, others, content / span, endings[COMPLETE],
        endings[FIN], endings[RST], open, reconnects, not_200, bytes_in, cpu, content ? cpu * 1e6 / content : 0);
    print("ttfb_ms", &ttfbs);
    print("gap_ms", &gaps);
    print("late_ms", &lates);
    printf("}\n");
    return 0;
}
