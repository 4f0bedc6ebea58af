/* imgsmith fake, for tests: an NVML that knows one made-up GPU. Interface: NVIDIA's public nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
#define API __attribute__((visibility("default")))

API int imgsmith_fake_gpu(void) { return 1; }

static const char *env(const char *k, const char *v) { const char *e = getenv(k); return e && *e ? e : v; }
static int num(const char *k, int v) { const char *e = getenv(k); return e && *e ? atoi(e) : v; }
static int text(char *out, u32 n, const char *s) { snprintf(out, n, "%s", s); return 0; }
static u32 count(void) { return (u32)num("IMGSMITH_FAKE_COUNT", 1); }
static u32 index_of(void *dev) { return (u32)((size_t)dev - 1); }

API int nvmlInit_v2(void) { return num("IMGSMITH_FAKE_NVML_INIT", 0); }
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlInitWithFlags(u32 f) { (void)f; return nvmlInit_v2(); }
API int nvmlShutdown(void) { return 0; }
API const char *nvmlErrorString(int rc) {
	switch (rc) {
	case 0: return "The operation was successful";
	case 3: return "The requested operation is not available on target device";
	case 4: return "The current user does not have permission for operation";
	case 9: return "NVIDIA driver is not loaded";
	case 18: return "RM has detected an NVML/RM version mismatch";
	default: return "imgsmith fake: unknown error";
	}
}
API int nvmlSystemGetDriverVersion(char *v, u32 n) { return text(v, n, env("IMGSMITH_FAKE_DRIVER", FAKE_DRIVER)); }
API int nvmlSystemGetNVMLVersion(char *v, u32 n) { return text(v, n, "13." FAKE_DRIVER); }
API int nvmlSystemGetCudaDriverVersion(int *v) { *v = num("IMGSMITH_FAKE_CUDA", FAKE_CUDA); return 0; }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) { return nvmlSystemGetCudaDriverVersion(v); }
API int nvmlDeviceGetCount_v2(u32 *n) { *n = count(); return 0; }
API int nvmlDeviceGetCount(u32 *n) { return nvmlDeviceGetCount_v2(n); }
API int nvmlDeviceGetHandleByIndex_v2(u32 i, void **d) {
	if (i >= count()) return 2;
	*d = (void *)(size_t)(i + 1);
	return 0;
}
API int nvmlDeviceGetHandleByIndex(u32 i, void **d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
API int nvmlDeviceGetIndex(void *d, u32 *i) { *i = index_of(d); return 0; }
API int nvmlDeviceGetUUID(void *d, char *s, u32 n) { snprintf(s, n, "GPU-0000fa4e-0000-0000-0000-%012x", index_of(d)); return 0; }
API int nvmlDeviceGetName(void *d, char *s, u32 n) { (void)d; return text(s, n, env("IMGSMITH_FAKE_NAME", "imgsmith fake GPU")); }
API int nvmlDeviceGetMemoryInfo(void *d, u64 *m) {
	(void)d;
	m[0] = FAKE_MEMORY; m[2] = 64ull << 20; m[1] = m[0] - m[2];
	return 0;
}
API int nvmlDeviceGetUtilizationRates(void *d, u32 *u) { (void)d; u[0] = u[1] = 0; return 0; }
API int nvmlDeviceGetPerformanceState(void *d, int *p) { (void)d; *p = 0; return 0; }
API int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) {
	(void)d;
	return sscanf(env("IMGSMITH_FAKE_CC", FAKE_CC), "%d.%d", a, b) == 2 ? 0 : 999;
}
API int nvmlDeviceGetEccMode(void *d, u32 *a, u32 *b) { (void)d; *a = *b = 1; return 0; }
API int nvmlDeviceGetTotalEccErrors(void *d, int t, int c, u64 *n) { (void)d; (void)t; (void)c; *n = (u64)num("IMGSMITH_FAKE_ECC", 0); return 0; }
API int nvmlDeviceGetRemappedRows(void *d, u32 *c, u32 *u, u32 *p, u32 *f) {
	(void)d;
	*c = *u = 0; *p = (u32)num("IMGSMITH_FAKE_REMAP_PENDING", 0); *f = 0;
	return 0;
}
API int nvmlDeviceGetRetiredPagesPendingStatus(void *d, int *p) { (void)d; *p = 0; return 3; }
API int nvmlDeviceGetMigMode(void *d, u32 *a, u32 *b) { (void)d; *a = *b = 0; return 0; }
API int nvmlDeviceGetComputeMode(void *d, int *m) { (void)d; *m = 0; return 0; }
API int nvmlDeviceGetTemperature(void *d, int s, u32 *t) { (void)d; (void)s; *t = 40; return 0; }
API int nvmlDeviceGetPowerUsage(void *d, u32 *p) { (void)d; *p = 60000; return 0; }
API int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *n, void *p) { (void)d; (void)p; *n = 0; return 0; }
