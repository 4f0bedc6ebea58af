/* imgsmith fake, for tests: a library that only has a name. */
__attribute__((visibility("default"))) int imgsmith_fake_gpu(void) { return 1; }
