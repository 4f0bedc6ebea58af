/* imgsmith fake, for tests: cuDNN's front library, which needs its family as the real one does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

API int imgsmith_fake_gpu(void) { return 1; }

static void note(const char *name) {
	const char *path = getenv("CUDNN_LOGDEST_DBG"), *level = getenv("CUDNN_LOGLEVEL_DBG");
	FILE *f;
	if (!path || !level || atoi(level) < 3 || !(f = fopen(path, "a"))) return;
	fprintf(f, "\nI! CuDNN (v%d imgsmith fake) function %s() called:\n", FAKE_CUDNN, name);
	fclose(f);
}
static int family(void) {
	static const char *names[] = {"libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9", "libcudnn_engines_precompiled.so.9",
		"libcudnn_engines_runtime_compiled.so.9", "libcudnn_heuristic.so.9"};
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (!dlopen(names[i], RTLD_LAZY)) {
			fprintf(stderr, "imgsmith fake cuDNN: unable to load %s: %s\n", names[i], dlerror());
			return 1002;
		}
	return 0;
}
API size_t cudnnGetVersion(void) { return FAKE_CUDNN; }
API size_t cudnnGetCudartVersion(void) { return FAKE_RUNTIME; }
API int cudnnCreate(void **h) { note("cudnnCreate"); *h = (void *)1; return family(); }
API int cudnnDestroy(void *h) { (void)h; note("cudnnDestroy"); return 0; }
API int cudnnBackendExecute(void) { note("cudnnBackendExecute"); return family(); }
API const char *cudnnGetErrorString(int rc) {
	return rc == 0 ? "CUDNN_STATUS_SUCCESS" : rc == 1002 ? "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED" : "CUDNN_STATUS_INTERNAL_ERROR";
}
