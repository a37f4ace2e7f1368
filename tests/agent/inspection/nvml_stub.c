/* A libnvidia-ml.so.1 whose GPUs are lines of a file, read anew at every call.
 *
 * NVML_STUB names the file. Lines: "count 2", "0.temperature 60", "0.nvlink.3.state 1", "0.error 15" (every call on
 * GPU 0 returns 15), "0.replays.error 999" (this one does), "0.register_error 3" (it has no events), "init 9"
 * (nvmlInit returns 9), "event 1 0 79" (the first event: Xid 79 of GPU 0).
 * What no line names is not supported. Structures and codes are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define TIMEOUT 10
#define UNINITIALIZED 1
#define DRIVER_NOT_LOADED 9

typedef struct { int index; } gpu_t;
typedef gpu_t *device;
static gpu_t gpus[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

static int get(const char *key, long long *value) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], name[128];
    long long found;
    int hit = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %lld", name, &found) == 2 && !strcmp(name, key)) { *value = found; hit = 1; }
    fclose(file);
    return hit;
}

static int ask(device gpu, const char *what, long long *value) {
    char key[160];
    long long code;
    snprintf(key, sizeof key, "%d.error", gpu->index);
    if (get(key, &code)) return (int)code;
    snprintf(key, sizeof key, "%d.%s.error", gpu->index, what);
    if (get(key, &code)) return (int)code;
    snprintf(key, sizeof key, "%d.%s", gpu->index, what);
    return get(key, value) ? SUCCESS : NOT_SUPPORTED;
}

#define UINT(function, what) \
    int function(device gpu, unsigned *out) { long long v; int r = ask(gpu, what, &v); if (!r) *out = (unsigned)v; return r; }

int nvmlInitWithFlags(unsigned flags) {
    long long code;
    (void)flags;
    if (get("init", &code)) return (int)code;
    return get("count", &code) ? SUCCESS : DRIVER_NOT_LOADED;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 3: return "Not Supported";
    default: return "Unknown Error";
    }
}
int nvmlDeviceGetCount_v2(unsigned *out) {
    long long value;
    if (get("count_error", &value)) return (int)value;
    if (!get("count", &value)) return UNINITIALIZED;
    *out = (unsigned)value;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    long long code;
    char key[64];
    snprintf(key, sizeof key, "%u.handle_error", index);
    if (get(key, &code)) return (int)code;
    *out = &gpus[index];
    return SUCCESS;
}
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(device gpu, pci_t *out) {
    long long ignored;
    int code = ask(gpu, "", &ignored);
    if (code != NOT_SUPPORTED) return code;
    memset(out, 0, sizeof *out);
    snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", 0x3b + gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device gpu, int type, int counter, unsigned long long *out) {
    long long value;
    int code = ask(gpu, type == 1 ? "uncorrected" : "corrected", &value);
    (void)counter;
    if (!code) *out = (unsigned long long)value;
    return code;
}
int nvmlDeviceGetRemappedRows(device gpu, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    long long a, b;
    int code = ask(gpu, "remap_pending", &a);
    if (code) return code;
    code = ask(gpu, "remap_failed", &b);
    if (code) return code;
    *corr = *unc = 0;
    *pending = (unsigned)a;
    *failed = (unsigned)b;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *out) {
    long long value;
    int code = ask(gpu, "temperature", &value);
    (void)sensor;
    if (!code) *out = (unsigned)value;
    return code;
}
int nvmlDeviceGetTemperatureThreshold(device gpu, int which, unsigned *out) {
    long long value;
    int code = ask(gpu, which == 0 ? "shutdown" : which == 2 ? "memory_max" : "slowdown", &value);
    if (!code) *out = (unsigned)value;
    return code;
}
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { double d; int si; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value;
} field_t;
int nvmlDeviceGetFieldValues(device gpu, int count, field_t *values) {
    for (int i = 0; i < count; i++) {
        long long value;
        const char *what = values[i].fieldId == 82 ? "memory_temperature" : "shutdown_tlimit";
        int known = values[i].fieldId == 82 || values[i].fieldId == 193;
        values[i].nvmlReturn = known ? ask(gpu, what, &value) : NOT_SUPPORTED;
        if (!values[i].nvmlReturn) values[i].value.si = (int)value;
    }
    return SUCCESS;
}
typedef struct { unsigned version; int margin; } margin_t;
int nvmlDeviceGetMarginTemperature(device gpu, margin_t *out) {
    long long value;
    int code = ask(gpu, "margin", &value);
    if (!code) out->margin = (int)value;
    return code;
}
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *out) {
    long long value;
    int code = ask(gpu, "throttle", &value);
    if (!code) *out = (unsigned long long)value;
    return code;
}
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "width")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "max_width")
UINT(nvmlDeviceGetPcieReplayCounter, "replays")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "default_power_limit")
typedef struct { unsigned gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device gpu, utilization_t *out) {
    long long value;
    int code = ask(gpu, "busy", &value);
    if (!code) out->gpu = (unsigned)value, out->memory = 0;
    return code;
}
int nvmlDeviceGetApplicationsClock(device gpu, int type, unsigned *out) {
    long long value;
    int code = ask(gpu, "sm_clock", &value);
    (void)type;
    if (!code) *out = (unsigned)value;
    return code;
}
int nvmlDeviceGetDefaultApplicationsClock(device gpu, int type, unsigned *out) {
    long long value;
    int code = ask(gpu, "default_sm_clock", &value);
    (void)type;
    if (!code) *out = (unsigned)value;
    return code;
}
int nvmlDeviceGetNvLinkState(device gpu, unsigned link, int *out) {
    char what[64];
    long long value;
    snprintf(what, sizeof what, "nvlink.%u.state", link);
    int code = ask(gpu, what, &value);
    if (!code) *out = (int)value;
    return code;
}
int nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, int counter, unsigned long long *out) {
    char what[64];
    long long value;
    snprintf(what, sizeof what, "nvlink.%u.errors.%d", link, counter);
    int code = ask(gpu, what, &value);
    if (!code) *out = (unsigned long long)value;
    return code;
}
typedef struct {
    device gpu;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} event_t;
static long long events_seen;
static int event_sets;
int stub_event_sets(void) { return event_sets; }
int nvmlEventSetCreate(void **set) { *set = &events_seen; event_sets++; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; event_sets--; return SUCCESS; }
int nvmlDeviceRegisterEvents(device gpu, unsigned long long types, void *set) {
    char key[64];
    long long code;
    (void)types, (void)set;
    snprintf(key, sizeof key, "%d.register_error", gpu->index);
    return get(key, &code) ? (int)code : SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout_ms) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    long long number, code;
    int index;
    (void)set, (void)timeout_ms;
    if (!file) return TIMEOUT;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "event %lld %d %lld", &number, &index, &code) == 3 && number > events_seen) {
            fclose(file);
            events_seen = number;
            memset(out, 0, sizeof *out);
            out->gpu = &gpus[index];
            out->eventType = 8; /* nvmlEventTypeXidCriticalError */
            out->eventData = (unsigned long long)code;
            return SUCCESS;
        }
    fclose(file);
    return TIMEOUT;
}

/* GPU performance monitoring: a sample is which GPU it is of; "0.sm 87" and "0.tensor 40" are percent. */
typedef struct { unsigned version, supported; } gpm_support_t;
int nvmlGpmQueryDeviceSupport(device gpu, gpm_support_t *out) {
    long long value;
    int code = ask(gpu, "sm", &value);
    if (code && code != NOT_SUPPORTED) return code;
    out->supported = code == SUCCESS;
    return SUCCESS;
}
typedef struct { int index; } sample_t;
int nvmlGpmSampleAlloc(sample_t **out) { *out = calloc(1, sizeof(sample_t)); return SUCCESS; }
int nvmlGpmSampleFree(sample_t *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(device gpu, sample_t *sample) {
    long long ignored;
    int code = ask(gpu, "sample", &ignored);
    sample->index = gpu->index;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}
typedef struct {
    unsigned id;
    int code;
    double value;
    char *names[3];
} gpm_metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; gpm_metric_t metrics[]; } gpm_metrics_t;
int nvmlGpmMetricsGet(gpm_metrics_t *asked) {
    for (unsigned i = 0; i < asked->count; i++) {
        long long value = 0;
        asked->metrics[i].code = ask(&gpus[asked->second->index], asked->metrics[i].id == 2 ? "sm" : "tensor", &value);
        asked->metrics[i].value = (double)value;
    }
    return SUCCESS;
}
