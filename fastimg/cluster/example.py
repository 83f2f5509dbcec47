"""The file that `fastimg cluster example` prints: a cluster for `ray up`, to be adapted."""

EXAMPLE = """\
# A Ray cluster on AWS for fastimg. `ray up` starts the head, which starts and ends nodes as they are needed.
#   ray up cluster.yaml
#   ray exec cluster.yaml 'fastimg train /shared/D --backend ray --elastic 8:16 ...'
#   ray down cluster.yaml
# All lines marked with CHANGE depend on your account. Every key is explained in Ray's cluster YAML reference.

cluster_name: fastimg
max_workers: 2            # nodes besides the head, at most
upscaling_speed: 1.0      # how fast nodes are added, relative to those that run
idle_timeout_minutes: 15  # a node without work ends after this time: longer than a run needs to start again

provider:
  type: aws               # gcp and azure have another node_config; `local` takes head_ip and worker_ips
  region: us-west-2       # CHANGE
  cache_stopped_nodes: false

auth:
  ssh_user: ubuntu

available_node_types:
  head:                   # keeps the state of the cluster and runs the command; never a spot instance
    node_config:
      InstanceType: m5.2xlarge
      ImageId: ami-0123456789abcdef0  # CHANGE: an image with the NVIDIA driver and Python 3.11 to 3.13
    resources: {"CPU": 0}             # no rank runs here
    min_workers: 0
    max_workers: 0
  gpu:                    # 8 GPUs each: 8 ranks
    node_config:
      InstanceType: p4d.24xlarge
      ImageId: ami-0123456789abcdef0  # CHANGE: the same
      # A spot instance costs less and may be taken away: training goes on from its last checkpoint on what is left.
      # InstanceMarketOptions: {MarketType: spot}
    resources: {"CPU": 96, "GPU": 8}
    min_workers: 0
    max_workers: 2
head_node_type: head

# All nodes need the same fastimg, and a folder that they share, for runs and for data that is no URL.
initialization_commands: []
setup_commands:
  - pip install 'fastimg[ray,remote] @ git+https://HOST/USER/fastimg'  # CHANGE: where your fastimg is from
  - sudo apt-get install -y nfs-common
  - sudo mkdir -p /shared
  - mountpoint -q /shared || sudo mount -t nfs4 -o nfsvers=4.1 FILE-SYSTEM:/ /shared  # CHANGE: your NFS or EFS
head_setup_commands: []
worker_setup_commands: []

file_mounts: {}
cluster_synced_files: []
file_mounts_sync_continuously: false
rsync_exclude: []
rsync_filter: []
docker: {}

head_start_ray_commands:
  - ray stop
  - ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ray stop
  - ray start --address=$RAY_HEAD_IP:6379
"""
