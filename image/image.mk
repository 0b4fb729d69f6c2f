# The sandbox images. They are built by the server's own command line, into the
# folder IMAGES, and are left alone if they exist.
#
#   make image-minimal    Python, Node.js, Bash (about 40 s)
#   make image-standard   with data and document libraries (about 2 min)
#
# To build again with newer packages: bin/workbench image build NAME --again

IMAGES ?= /var/lib/workbench/images

.PHONY: image-minimal image-standard
image-minimal image-standard: image-%:
	@bin/workbench image build $* --images $(IMAGES)
