/* imgsmith fake, for tests: stands for libtensorflow_framework. It opens the CUDA set by its own RUNPATH, as
   the real one does, and finds no GPU when one of the set is missing. */
#include <dlfcn.h>
#include <stdio.h>

#define API __attribute__((visibility("default")))

API int imgsmith_fake_gpu(void) { return 1; }

API int imgsmith_tf_open(const char *name) {
	if (dlopen(name, RTLD_LAZY)) {
		fprintf(stderr, "I imgsmith fake dso_loader] Successfully opened dynamic library %s\n", name);
		return 0;
	}
	fprintf(stderr, "I imgsmith fake dso_loader] Could not load dynamic library '%s'; dlerror: %s\n", name, dlerror());
	return 1;
}
static void *driver(const char *symbol) {
	void *h = dlopen("libcuda.so.1", RTLD_LAZY);
	return h ? dlsym(h, symbol) : 0;
}
API int imgsmith_tf_gpus(void) {
	static const char *set[] = {FAKE_DLOPEN};
	int (*init)(unsigned), (*count)(int *), n = 0, missing = 0, rc;
	if (imgsmith_tf_open("libcuda.so.1")) return 0;
	init = (int (*)(unsigned))driver("cuInit");
	rc = init ? init(0) : 303;
	if (rc) {
		fprintf(stderr, "E imgsmith fake cuda_platform] failed call to cuInit: UNKNOWN ERROR (%d)\n", rc);
		return 0;
	}
	for (unsigned i = 0; i < sizeof set / sizeof *set; i++) missing += imgsmith_tf_open(set[i]);
	if (missing) {
		fprintf(stderr, "W imgsmith fake gpu_device] Cannot dlopen some GPU libraries. Skipping registering GPU devices...\n");
		return 0;
	}
	count = (int (*)(int *))driver("cuDeviceGetCount");
	return count && count(&n) == 0 ? n : 0;
}
API int imgsmith_tf_capability(int which) {
	int (*get)(int *, int, int) = (int (*)(int *, int, int))driver("cuDeviceGetAttribute"), v = 0;
	if (get) get(&v, which, 0);
	return v;
}
API int imgsmith_tf_convolution(void) {
	void *h = dlopen("libcudnn.so.9", RTLD_LAZY), *handle;
	int (*create)(void **) = h ? (int (*)(void **))dlsym(h, "cudnnCreate") : 0;
	int (*execute)(void) = h ? (int (*)(void))dlsym(h, "cudnnBackendExecute") : 0;
	int rc;
	if (!create || !execute) return 1;
	rc = create(&handle);
	return rc ? rc : execute();
}
